"""Chromium for tests of the dashboard, controlled by Playwright.

Unexpected errors on the console, exceptions, violations of the content security policy and requests
to other hosts fail a test.
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

# The directory for screenshots, such as those in the documentation. Unset: take none.
PICTURES_VARIABLE = "DASHBOARD_PICTURES"

# Errors on the console when the broker is unavailable, and when it rejects a request.
NO_ANSWER = r"ERR_(CONNECTION|EMPTY_RESPONSE|SOCKET)"
NO_TOKEN = r"status of 401"
NOT_FOUND = r"status of 404"


def find_chromium() -> str | None:
    """Returns Chromium, preferably the one without windows, which needs less processor time."""
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Starts a browser; skips the tests if Chromium is not installed."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("chromium is not installed")
    # The sandbox of Chromium does not work as root.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    # The same timeout as for other waits of the tests.
    expect.set_options(timeout=TIMEOUT_S * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        try:
            yield browser
        finally:
            browser.close()


class Dashboard(BrokerProcess):
    """A broker with a dashboard, which keeps both ports after a restart."""

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
        """A link with this token, or with the admin's."""
        return f"{self.url}#token={self.token if token is None else token}"


class Tab:
    """A page in a new browser context that collects errors.

    `expected` are patterns of allowed errors; `options` are those of a Playwright context, such as
    `color_scheme="dark"` and `viewport={"width": 360, "height": 740}`.
    """

    def __init__(self, browser: Browser, url: str, *expected: str, **options: Any) -> None:
        self._host = urlsplit(url).netloc
        self._expected = expected
        self._expected_now: tuple[str, ...] = ()
        self._errors: list[str] = []
        self._context = browser.new_context(**options)
        self._context.set_default_timeout(TIMEOUT_S * 1000)
        self._context.on("request", self._check_request)
        self.page = self._context.new_page()
        self.page.on("console", self._add_console_error)
        self.page.on("pageerror", self._add_page_error)
        self.page.goto(url)

    def expect(self, *errors: str) -> None:
        """Allows these errors as well, until the next check."""
        self._expected_now += errors

    def check(self) -> None:
        """Fails if there were unexpected errors since the last check."""
        expected = (*self._expected, *self._expected_now)
        errors, self._errors, self._expected_now = self._errors, [], ()
        unexpected = [each for each in errors if not any(re.search(it, each) for it in expected)]
        assert not unexpected, "unexpected errors of the page:\n" + "\n".join(unexpected)

    def close(self) -> None:
        self._context.close()

    def _add_console_error(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._errors.append(f"{message.text} ({message.location.get('url', '')})")

    def _add_page_error(self, error: Error) -> None:
        self._errors.append(f"{error.message}\n{error.stack or ''}")

    def _check_request(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme not in ("data", "blob") and url.netloc != self._host:
            self._errors.append(f"request to another host: {request.url}")


@contextmanager
def open_page(browser: Browser, url: str, *expected: str, **options: Any) -> Iterator[Page]:
    """Opens a `Tab` for one test, and checks it at the end."""
    tab = Tab(browser, url, *expected, **options)
    try:
        yield tab.page
    finally:
        tab.close()
    tab.check()


def go(page: Page, route: str) -> None:
    """Opens another page of the dashboard, such as `/streams`."""
    page.evaluate("route => { location.hash = `#${route}`; }", route)


def wants_pictures() -> bool:
    return bool(os.environ.get(PICTURES_VARIABLE))


def take_picture(page: Page, name: str) -> None:
    """Saves a screenshot, if screenshots are wanted."""
    if wants_pictures():
        path = Path(os.environ[PICTURES_VARIABLE], f"{name}.png")
        page.screenshot(path=path, animations="disabled")
