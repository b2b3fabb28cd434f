"""A real browser for tests of the page: chromium as the system has it, driven by playwright.

A page that complains fails its test: an error on its console or in its code, something that its
content security policy forbids, a request to another host.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Error,
    Page,
    Request,
    expect,
    sync_playwright,
)

from penstock.discovery import Address, read_address
from tests.support import TIMEOUT_S, BrokerProcess

# Where pictures of pages go, if anywhere: those in the documentation are made by tests.
PICTURES_VARIABLE = "DASHBOARD_PICTURES"

# What a browser writes on its console when nobody answers, and when a broker refuses.
NO_ANSWER = r"ERR_(CONNECTION|EMPTY_RESPONSE|SOCKET)"
NO_TOKEN = r"status of 401"
NOT_FOUND = r"status of 404"


def find_chromium() -> str | None:
    usual = Path("/usr/bin/chromium")
    return str(usual) if usual.exists() else shutil.which("chromium")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser for as many pages as one likes; without chromium the tests are skipped."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("the tests in a browser were left out: chromium is not installed")
    # Chromium refuses to be shut in by root, who can do everything anyway.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    # What is expected of a page may take as long as anything else that is waited for.
    expect.set_options(timeout=TIMEOUT_S * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        try:
            yield browser
        finally:
            browser.close()


class Dashboard(BrokerProcess):
    """A broker with a page; it keeps both of its ports when it is started again."""

    url: str

    def __init__(self, root: Path, *flags: str, **environment: str) -> None:
        super().__init__(root, *flags, PENSTOCK_HTTP_PORT="0", **environment)

    def start(self) -> None:
        super().start()
        address: Address | None = read_address(self.root)
        assert address is not None
        assert address.http_url is not None
        self.url = address.http_url
        self.set_variable("PENSTOCK_HTTP_PORT", str(urlsplit(self.url).port))

    def link(self, token: str | None = None) -> str:
        """The link of somebody who has a token: the admin's if none is named."""
        return f"{self.url}#token={self.token if token is None else token}"


class Tab:
    """A page of a new visitor, that must not complain of anything but what is `expected`.

    `expected` are patterns of complaints; `options` are those of a context of playwright, such as
    `color_scheme="dark"` and `viewport={"width": 360, "height": 740}`.
    """

    def __init__(self, browser: Browser, url: str, *expected: str, **options: Any) -> None:
        self._host = urlsplit(url).netloc
        self._expected = expected
        self._expected_now: tuple[str, ...] = ()
        self._complaints: list[str] = []
        self._context = browser.new_context(**options)
        self._context.set_default_timeout(TIMEOUT_S * 1000)
        self._context.on("request", self._look)
        self.page = self._context.new_page()
        self.page.on("console", self._hear)
        self.page.on("pageerror", self._fail)
        self.page.goto(url)

    def expect(self, *complaints: str) -> None:
        """Until it is checked for the next time, the page may complain of these too."""
        self._expected_now += complaints

    def check(self) -> None:
        """Fails if the page has complained since this was asked for last."""
        expected = (*self._expected, *self._expected_now)
        complaints, self._complaints, self._expected_now = self._complaints, [], ()
        unexpected = [
            each for each in complaints if not any(re.search(it, each) for it in expected)
        ]
        assert not unexpected, "the page complained:\n" + "\n".join(unexpected)

    def close(self) -> None:
        self._context.close()

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._complaints.append(f"{message.text} ({message.location.get('url', '')})")

    def _fail(self, error: Error) -> None:
        self._complaints.append(f"{error.message}\n{error.stack or ''}")

    def _look(self, request: Request) -> None:
        asked = urlsplit(request.url)
        if asked.scheme not in ("data", "blob") and asked.netloc != self._host:
            self._complaints.append(f"it asked another host: {request.url}")


@contextmanager
def open_page(browser: Browser, url: str, *expected: str, **options: Any) -> Iterator[Page]:
    """A tab for one test: as `Tab`, and checked at its end."""
    tab = Tab(browser, url, *expected, **options)
    try:
        yield tab.page
    finally:
        tab.close()
    tab.check()


def go(page: Page, route: str) -> None:
    """Enters another page of the dashboard, such as `/streams`, as a link to it would."""
    page.evaluate("route => { location.hash = `#${route}`; }", route)


def wants_pictures() -> bool:
    return bool(os.environ.get(PICTURES_VARIABLE))


def take_picture(page: Page, name: str) -> None:
    """Keeps what the page looks like now, if pictures are wanted."""
    if wants_pictures():
        path = Path(os.environ[PICTURES_VARIABLE], f"{name}.png")
        page.screenshot(path=path, animations="disabled")
