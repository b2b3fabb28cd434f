"""The dashboard, in a browser.

No test changes the streams of `dashboard`. Tests that change streams create them in `site`, or have
a broker of their own.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

from penstock.broker.access import Role
from penstock.client.blocking import StreamManagerClient
from penstock.model import (
    ExportDefinition,
    HTTPConfig,
    KinesisConfig,
    MessageStreamDefinition,
    StrategyOnFull,
)
from penstock.web.web_server import PAGE
from tests.broker.exports.workbench import to_http, to_s3
from tests.raw_connection import RawConnection
from tests.support import TIMEOUT_S, Json, append, create, running, wait_until
from tests.web.site import Site, commit, plan

from .browser import (
    NO_ANSWER,
    NO_TOKEN,
    NOT_FOUND,
    Dashboard,
    Tab,
    go,
    open_browser,
    open_page,
    take_picture,
)

expect.set_options(timeout=TIMEOUT_S * 1000)

SCREEN: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 360, "height": 740}
ATTACK = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
ROUTES = {
    "/": "Overview",
    "/streams": "Streams",
    "/streams/plain": "plain",
    "/streams/hall%20B%2C%20press%204": "hall B, press 4",
    f"/streams/{'long-' * 50}": "long-" * 50,
    "/tasks": "S3 tasks",
    "/pipeline": "Pipeline",
    "/events": "Events",
}


KINESIS = KinesisConfig("to-kinesis", kinesis_stream_name="wind-farm", priority=3)
# A stream that does not exist.
MISSING = "never-created"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def dashboard(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """A broker with streams that no test changes."""
    with Dashboard(tmp_path_factory.mktemp("broker") / "root") as started:
        _fill(started)
        yield started


def _fill(dashboard: Dashboard) -> None:
    with StreamManagerClient(root=dashboard.root) as client:
        for definition in _definitions():
            client.create_message_stream(definition)
        for number in range(50):
            reading = f'{{"number": {number}, "deep": {{"list": [1, 2.50]}}, "empty": {{}}}}'
            client.append_message("plain", reading.encode())
        client.append_message("attacked", ATTACK.encode())
        client.append_message("attacked", "back\u202eward".encode())


def _definitions() -> Iterator[MessageStreamDefinition]:
    exports = ExportDefinition(
        http=[HTTPConfig("to-attack", uri=f"http://127.0.0.1:1/{ATTACK}", disabled=True)],
        kinesis=[KINESIS],
    )
    for name in ("plain", "attacked", "binary", "hall B, press 4", "long-" * 50):
        yield MessageStreamDefinition(
            name,
            strategy_on_full=StrategyOnFull.OverwriteOldestData,
            export_definition=exports if name == "attacked" else ExportDefinition(),
        )


@pytest.fixture(scope="module")
def tab(browser: Browser, dashboard: Dashboard) -> Iterator[Tab]:
    """The open tab of an admin."""
    # The error of a request for a missing stream may arrive in a later test.
    opened = Tab(browser, dashboard.link(), rf"{NOT_FOUND}.*{MISSING}")
    yield opened
    opened.close()


@pytest.fixture
def page(tab: Tab) -> Iterator[Page]:
    """The overview of `dashboard` for an admin, on a large screen."""
    with _open_overview(tab) as opened:
        yield opened


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A broker in which each test creates its own streams."""
    with Site(tmp_path_factory.mktemp("site") / "root") as started:
        yield started


@pytest.fixture(scope="module")
def site_client(site: Site) -> Iterator[StreamManagerClient]:
    with StreamManagerClient(root=site.root) as opened:
        yield opened


@pytest.fixture(scope="module")
def site_tab(browser: Browser, site: Site) -> Iterator[Tab]:
    opened = Tab(browser, site.link())
    yield opened
    opened.close()


@pytest.fixture
def site_page(site_tab: Tab) -> Iterator[Page]:
    """The overview of `site` for an admin, on a large screen."""
    with _open_overview(site_tab) as opened:
        yield opened


@contextmanager
def _open_overview(tab: Tab) -> Iterator[Page]:
    """Shows the overview without the changes of earlier tests, and checks the tab at the end."""
    tab.page.set_viewport_size(SCREEN)
    tab.page.emulate_media(color_scheme="light")
    go(tab.page, "/")
    _heading(tab.page, "Overview")
    yield tab.page
    tab.check()


def _create_stream(client: StreamManagerClient, name: str, *payloads: bytes) -> None:
    """Creates a stream with messages and an export to Kinesis."""
    client.create_message_stream(
        MessageStreamDefinition(
            name,
            strategy_on_full=StrategyOnFull.OverwriteOldestData,
            export_definition=ExportDefinition(kinesis=[KINESIS]),
        )
    )
    for payload in payloads:
        client.append_message(name, payload)


def _heading(page: Page, text: str) -> None:
    expect(page.get_by_role("heading", level=1)).to_have_text(text)
    expect(page.get_by_role("main")).to_have_attribute("aria-busy", "false")


def _payloads(page: Page) -> Any:
    return page.get_by_test_id("messages").locator("pre")


# Views


def test_overview_is_live_and_the_url_has_no_token(page: Page, dashboard: Dashboard) -> None:
    _heading(page, "Overview")
    expect(page.get_by_role("status").first).to_have_text("Live")
    expect(page.get_by_test_id("tile-streams")).to_contain_text("5")
    expect(page.get_by_role("button", name="Token: admin")).to_be_visible()
    assert dashboard.token not in page.url
    expect(page.get_by_role("contentinfo")).to_contain_text(str(dashboard.root))
    take_picture(page, "page-overview")


def test_plots_move_when_messages_are_appended(browser: Browser, tmp_path: Path) -> None:
    with (
        Site(tmp_path / "root") as site,
        site.connect() as client,
        open_page(browser, site.link()) as page,
    ):
        create(client, "s")
        plot = page.get_by_test_id("plot-messages")
        expect(plot.locator("canvas")).to_be_visible()
        newest = plot.get_attribute("data-newest") or ""
        appended = plot.locator(".legend-value").first

        def is_moving() -> bool:
            append(client, "s", b"one more")
            return appended.inner_text() not in ("\u2013", "0/s")

        wait_until(is_moving)
        expect(plot).not_to_have_attribute("data-newest", newest)


def test_streams_are_listed_with_their_sizes(page: Page) -> None:
    go(page, "/streams")
    _heading(page, "Streams")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="plain"))
    expect(row).to_contain_text("of 256 MiB")
    expect(row).to_contain_text("overwrites oldest")
    expect(row.locator(".cell-messages")).to_have_text("50")
    expect(row.get_by_role("meter")).to_have_attribute("aria-valuenow", "0")
    exported = page.get_by_role("row").filter(has=page.get_by_role("link", name="attacked"))
    expect(exported).to_contain_text("to-kinesis")
    expect(exported).to_contain_text("paused, 2 behind")


def test_streams_are_filtered_and_sorted(page: Page) -> None:
    go(page, "/streams")
    names = page.locator(".stream-name")
    expect(names).to_have_text(["attacked", "binary", "hall B, press 4", "long-" * 50, "plain"])
    page.keyboard.press("/")
    page.keyboard.type("press hall")
    expect(names).to_have_text(["hall B, press 4"])
    expect(page.get_by_text("1 of 5 streams")).to_be_visible()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("paused")
    expect(names).to_have_text(["attacked"])
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("nothing like it")
    expect(page.get_by_text("No stream matches the filter.")).to_be_visible()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.press("Delete")
    page.get_by_role("button", name="Name").click()
    expect(names.first).to_have_text("plain")
    page.get_by_role("button", name="Exports").click()
    expect(page.get_by_role("columnheader", name="Exports")).to_have_attribute(
        "aria-sort", "descending"
    )
    expect(names.first).to_have_text("attacked")
    page.get_by_role("button", name="Name").click()
    page.get_by_role("button", name="Name").click()
    expect(page.get_by_role("columnheader", name="Name")).to_have_attribute(
        "aria-sort", "descending"
    )
    expect(names.first).to_have_text("plain")
    expect(names.last).to_have_text("attacked")


def test_row_keeps_its_element_when_its_numbers_change(
    site_page: Page, site_client: StreamManagerClient
) -> None:
    page = site_page
    _create_stream(site_client, "growing", b"first")
    go(page, "/streams")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="growing"))
    expect(row.locator(".cell-messages")).to_have_text("1")
    row.evaluate("row => { window.kept = row; }")
    site_client.append_message("growing", b"one more")
    expect(row.locator(".cell-messages")).to_have_text("2")
    assert row.evaluate("row => window.kept === row")


def test_messages_are_shown_as_text_json_and_hex(page: Page) -> None:
    go(page, "/streams/plain")
    _heading(page, "plain")
    text = '{"number": 49, "deep": {"list": [1, 2.50]}, "empty": {}}'
    expect(_payloads(page).first).to_have_text(text)
    expect(_payloads(page)).to_have_count(20)
    page.get_by_role("radio", name="JSON").check(force=True)
    lines = [
        "{",
        '  "number": 49,',
        '  "deep": {',
        '    "list": [',
        "      1,",
        "      2.50",
        "    ]",
        "  },",
        '  "empty": {}',
        "}",
    ]
    # Numbers keep their format.
    assert _payloads(page).first.inner_text() == "\n".join(lines)
    page.get_by_role("radio", name="Hex").check(force=True)
    first = _payloads(page).first.inner_text().splitlines()[0]
    assert first == '0000  7b 22 6e 75 6d 62 65 72 22 3a 20 34 39 2c 20 22  {"number": 49, "'
    page.get_by_text("Definition", exact=True).click()
    expect(page.get_by_test_id("definition")).to_contain_text('"maxSize": 268435456')


def test_messages_can_be_paged_from_any_number(page: Page) -> None:
    go(page, "/streams/plain")
    numbers = page.locator(".message-number")
    expect(numbers.first).to_have_text("49")
    page.get_by_role("button", name="Older").click()
    expect(numbers.first).to_have_text("29")
    expect(numbers.last).to_have_text("10")
    page.get_by_role("button", name="Older").click()
    expect(numbers.first).to_have_text("9")
    expect(page.get_by_role("button", name="Older")).to_be_disabled()
    page.get_by_label("From number").fill("45")
    page.get_by_role("button", name="Go").click()
    expect(numbers).to_have_text(["49", "48", "47", "46", "45"])
    page.get_by_label("From number").fill("1000")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No messages from number 1,000 on.")).to_be_visible()
    expect(numbers).to_have_text(["49", "48", "47", "46", "45"])
    page.get_by_role("button", name="Newest").click()
    expect(numbers.first).to_have_text("49")


def test_follow_shows_new_messages(site_page: Page, site_client: StreamManagerClient) -> None:
    page = site_page
    _create_stream(site_client, "hall C, press 4")
    go(page, "/streams/hall C, press 4")
    expect(page.get_by_text("No messages.")).to_be_visible()
    page.get_by_role("switch", name="Follow").check()
    site_client.append_message("hall C, press 4", b"first")
    expect(_payloads(page)).to_have_text(["first"])
    site_client.append_messages("hall C, press 4", [b"second", b"third"])
    expect(_payloads(page)).to_have_text(["third", "second", "first"])
    page.get_by_role("switch", name="Follow").uncheck()
    site_client.append_message("hall C, press 4", b"fourth")
    page.get_by_role("button", name="1 newer message").click()
    expect(_payloads(page).first).to_have_text("fourth")


def test_large_payload_is_cut_and_can_be_downloaded(
    site_page: Page, site_client: StreamManagerClient
) -> None:
    page = site_page
    _create_stream(site_client, "large", b"small")
    payload = bytes(range(256)) * 30
    number = site_client.append_message("large", payload)
    go(page, f"/streams/large?from={number}")
    message = page.locator(f'[data-number="{number}"]')
    # Binary payloads start in hex.
    expect(message).to_contain_text("00 01 02 03")
    expect(message).to_contain_text("the first 4 KiB")
    with page.expect_download() as download:
        message.get_by_role("button", name="Download payload").click()
    assert download.value.path().read_bytes() == payload


def test_untrusted_text_is_not_interpreted_as_html(page: Page) -> None:
    go(page, "/streams/attacked")
    _heading(page, "attacked")
    expect(_payloads(page)).to_have_text(["back<U+202E>ward", ATTACK])
    for name in ("JSON", "Text"):
        page.get_by_role("radio", name=name).check(force=True)
    export = page.locator('[data-identifier="to-attack"]')
    expect(export).to_contain_text(ATTACK)
    expect(page).to_have_title("attacked · Penstock")
    assert page.locator("main img, main script").count() == 0


def test_empty_pages_say_what_to_do(page: Page) -> None:
    go(page, "/tasks")
    expect(page.get_by_text("No tasks.")).to_be_visible()
    go(page, "/pipeline")
    expect(page.get_by_text("No pipeline is connected.")).to_be_visible()
    go(page, "/streams/plain")
    expect(page.get_by_text("This stream has no exports.")).to_be_visible()
    go(page, "/nowhere")
    _heading(page, "Page not found")


def test_missing_stream_is_reported(page: Page) -> None:
    go(page, f"/streams/{MISSING}")
    expect(page.get_by_role("alert").filter(has_text=MISSING)).to_be_visible()


def test_events_are_filtered_by_level_and_text(page: Page, dashboard: Dashboard) -> None:
    go(page, "/events")
    expect(page.get_by_test_id("events")).to_contain_text(dashboard.url)
    page.get_by_role("radio", name="Errors").check(force=True)
    expect(page.get_by_text("No event matches the filter.")).to_be_visible()
    page.get_by_role("radio", name="All").check(force=True)
    page.get_by_label("Filter events").fill("dashboard")
    expect(page.get_by_test_id("events").get_by_role("listitem")).to_have_count(1)


# Changes and tokens


def test_admin_pauses_and_resumes_an_export(
    site_page: Page, site_client: StreamManagerClient
) -> None:
    page = site_page
    _create_stream(site_client, "exported", b"1", b"2")

    def is_disabled() -> bool:
        definition = site_client.describe_message_stream("exported").definition
        return bool((definition.export_definition.kinesis or [])[0].disabled)

    go(page, "/streams/exported")
    export = page.locator('[data-identifier="to-kinesis"]')
    expect(export).to_contain_text("2 behind")
    export.get_by_role("button", name="Pause to-kinesis").click()
    expect(export).to_have_attribute("data-state", "paused")
    assert is_disabled()
    # The same button still has the focus.
    page.keyboard.press("Enter")
    expect(export.get_by_role("button", name="Pause to-kinesis")).to_be_visible()
    expect(export).not_to_have_attribute("data-state", "paused")
    assert not is_disabled()


def test_admin_rewinds_an_export(site_page: Page, site_client: StreamManagerClient) -> None:
    page = site_page
    _create_stream(site_client, "rewound", b"1", b"2")

    def exported() -> int:
        statuses = site_client.describe_message_stream("rewound").export_statuses
        found = {each.export_config_identifier: each for each in statuses}
        return found["to-kinesis"].last_exported_sequence_number

    site_client.rewind_export("rewound", "to-kinesis", 2)
    go(page, "/streams/rewound")
    export = page.locator('[data-identifier="to-kinesis"]')
    expect(export).to_contain_text("No messages behind")
    export.get_by_role("button", name="Rewind to-kinesis").click()
    dialog = export.get_by_test_id("rewind-dialog")
    expect(dialog).to_be_visible()
    effect = dialog.get_by_test_id("rewind-effect")
    expect(effect).to_have_text(
        "The export is at this message: only messages in flight are exported again."
    )
    dialog.get_by_label("Continue with message").fill("1")
    expect(effect).to_have_text("1 message is exported again.")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    assert exported() == 1

    export.get_by_role("button", name="Rewind to-kinesis").click()
    dialog.get_by_role("button", name="Earliest").click()
    expect(effect).to_have_text("2 messages are exported again.")
    dialog.get_by_role("button", name="Rewind").click()
    expect(dialog).to_be_hidden()
    expect(export).to_contain_text("2 behind")
    assert exported() == -1

    export.get_by_role("button", name="Rewind to-kinesis").click()
    dialog.get_by_label("Continue with message").fill("7")
    expect(effect).to_have_text("The stream has no message 7: the next message is 2.")
    dialog.get_by_role("button", name="Latest").click()
    expect(effect).to_have_text("2 messages are skipped.")
    page.keyboard.press("Escape")
    assert exported() == -1


def test_statistics_need_no_token_and_messages_ask_for_one(
    browser: Browser, dashboard: Dashboard
) -> None:
    with open_page(browser, f"{dashboard.url}#/streams/attacked") as page:
        _heading(page, "attacked")
        export = page.locator('[data-identifier="to-kinesis"]')
        export.get_by_role("button", name="Pause to-kinesis").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Pausing an export needs a token with the role admin")
        expect(dialog).to_contain_text("penstock env")
        expect(dialog).to_contain_text(str(dashboard.root / "token"))
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        expect(_payloads(page)).to_have_count(0)
        page.get_by_role("button", name="Enter a token").click()
        dialog.get_by_label("Token", exact=True).fill(dashboard.token)
        page.keyboard.press("Enter")
        expect(_payloads(page)).to_have_count(2)
        # The tab keeps the token.
        page.reload()
        expect(_payloads(page)).to_have_count(2)


def test_unknown_token_opens_the_token_page(browser: Browser, dashboard: Dashboard) -> None:
    with open_page(browser, dashboard.link("made-up"), NO_TOKEN) as page:
        _heading(page, "Token required")
        expect(page.get_by_text("The broker rejected this token.")).to_be_visible()
        expect(page.get_by_role("status").first).to_have_text("Token required")
        page.get_by_test_id("access").get_by_label("Token", exact=True).fill(dashboard.token)
        page.get_by_role("button", name="Use token").click()
        _heading(page, "Overview")
        expect(page.get_by_role("status").first).to_have_text("Live")


# Pipelines

LONG = "long-" * 50
ABOUT = {
    "started": 1_700_000_000_000,
    "sparkVersion": "4.1",
    "master": "local[3]",
    "sparkPage": "javascript:alert(1)",
}
# A report of a failed delivery, whose export is not retried during the test.
FAILED = {"settledEnd": 0, "exportedMessages": 0, "error": ATTACK, "pauseMillis": 300_000}


class TaskPeer:
    """A task of a pipeline, controlled by a test."""

    _numbers = count(1)

    def __init__(self, connection: RawConnection) -> None:
        self.connection = connection
        self.name = str(next(self._numbers))

    def plan(self, **fields: Any) -> list[Json]:
        return plan(self.connection, pipeline="edge", task=self.name, about=ABOUT, **fields)

    def deliver(self, stream: str, **fields: Any) -> None:
        """Appends a message and reports its delivery with these fields."""
        append(self.connection, stream, b"x")
        (found,) = self.plan()
        assert found["stream"] == stream
        commit(self.connection, found, **fields)
        # The page sorts deliveries by times in milliseconds.
        ended = time.monotonic()
        wait_until(lambda: time.monotonic() > ended + 0.005)

    def serve(self) -> None:
        """Delivers the next work."""
        for found in self.plan():
            commit(self.connection, found)


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Site]:
    """A broker whose exports do not gather batches."""
    with Site(tmp_path / "root", export_gather_ms=0) as started:
        with started.connect() as connection:
            for name in ("presses", LONG):
                create(connection, name, exportDefinition=to_http("to-hall"))
            create(connection, "camera", exportDefinition=to_s3("to-bucket"))
        yield started


@pytest.fixture
def task(edge: Site) -> Iterator[TaskPeer]:
    with edge.connect() as connection:
        yield TaskPeer(connection)


@pytest.fixture
def pipeline_page(browser: Browser, edge: Site) -> Iterator[Page]:
    with open_page(browser, edge.link(), viewport=SCREEN) as page:
        go(page, "/pipeline")
        _heading(page, "Pipeline")
        yield page


def _deliveries(page: Page) -> Locator:
    return page.get_by_role("table", name="Latest deliveries").locator("tbody").get_by_role("row")


def test_tasks_are_shown_with_their_assignments(
    pipeline_page: Page, task: TaskPeer, edge: Site
) -> None:
    append(task.connection, "presses", b"1")
    (found,) = task.plan()
    pipeline = pipeline_page.get_by_test_id("pipeline")
    expect(pipeline).to_contain_text("connected")
    expect(pipeline).to_contain_text("local[3]")
    # An unsafe URL is not a link.
    expect(pipeline.get_by_text("Spark UI")).to_be_hidden()
    shown = pipeline.get_by_test_id("task").filter(has_text=f"Task {task.name}")
    expect(shown).to_contain_text("started")
    work = shown.get_by_test_id("assignment")
    for text in ("presses", "to-hall", "HTTP", "1 message", "for "):
        expect(work).to_contain_text(text)
    before = work.locator(".elapsed").inner_text()
    expect(work.locator(".elapsed")).not_to_have_text(before)

    with edge.connect() as connection, running((idle := TaskPeer(connection)).serve):
        other = pipeline.get_by_test_id("task").filter(has_text=f"Task {idle.name}")
        expect(other).to_contain_text("Waiting for work")
        expect(other).to_contain_text("0 deliveries · 0 messages")
        append(task.connection, "presses", b"2")
        commit(task.connection, found)
    expect(shown).to_contain_text("1 delivery · 1 message")
    expect(work).to_have_count(0)
    expect(other).to_contain_text("ended")


def test_deliveries_are_listed_and_plotted_by_kind(pipeline_page: Page, task: TaskPeer) -> None:
    for _ in range(3):
        task.deliver("presses")
    task.deliver("camera")
    task.deliver(LONG, **FAILED)
    rows = _deliveries(pipeline_page)
    newest = rows.first
    for text in (LONG, "to-hall", "HTTP", "failed", ATTACK):
        expect(newest).to_contain_text(text)
    expect(newest).to_have_attribute("data-state", "bad")
    expect(rows.filter(has_text="camera")).to_contain_text("delivered")
    bars = pipeline_page.get_by_role("img", name="to HTTP")
    expect(bars).to_have_attribute("aria-label", re.compile("median .*, longest .*, 1 failed"))
    assert bars.locator("rect").count() >= 4
    assert bars.locator("rect[data-failed]").count() == 1
    expect(
        pipeline_page.get_by_role("img", name="Durations of the last 1 delivery to S3")
    ).to_be_visible()
    expect(pipeline_page).to_have_title("Pipeline · Penstock")
    assert pipeline_page.locator("main img, main script").count() == 0
    take_picture(pipeline_page, "page-pipeline")


def test_deliveries_are_filtered_and_sorted_with_the_keyboard(
    pipeline_page: Page, task: TaskPeer
) -> None:
    for stream in ("presses", "camera"):
        task.deliver(stream)
    task.deliver(LONG, **FAILED)
    rows = _deliveries(pipeline_page)
    expect(rows).to_have_count(3)
    pipeline_page.get_by_role("radio", name="All").focus()
    pipeline_page.keyboard.press("ArrowRight")
    expect(pipeline_page.get_by_role("radio", name="Failed")).to_be_focused()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("failed")
    pipeline_page.keyboard.press("ArrowLeft")
    expect(rows).to_have_count(3)
    pipeline_page.get_by_role("button", name="Stream").focus()
    pipeline_page.keyboard.press("Enter")
    expect(rows.first).to_contain_text("camera")
    expect(pipeline_page.get_by_role("columnheader", name="Stream")).to_have_attribute(
        "aria-sort", "ascending"
    )
    link = rows.first.get_by_role("link", name="camera")
    link.focus()
    pipeline_page.keyboard.press("Enter")
    _heading(pipeline_page, "camera")


def test_pipeline_fits_the_screen_of_a_phone(pipeline_page: Page, task: TaskPeer) -> None:
    task.deliver(LONG, **FAILED)
    append(task.connection, "presses", b"1")
    (found,) = task.plan()
    pipeline_page.set_viewport_size(PHONE)
    expect(pipeline_page.get_by_test_id("assignment")).to_be_visible()
    failed = _deliveries(pipeline_page).filter(has_text="failed")
    expect(failed.locator(".problem")).to_be_visible()
    pipeline_page.emulate_media(color_scheme="dark")
    take_picture(pipeline_page, "page-pipeline-phone")
    assert pipeline_page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    frame = pipeline_page.locator(".table-frame")
    assert frame.evaluate("frame => frame.scrollWidth <= frame.clientWidth")
    commit(task.connection, found)


def test_pipeline_is_shown_as_disconnected(pipeline_page: Page, edge: Site) -> None:
    pipeline = pipeline_page.get_by_test_id("pipeline")
    with edge.connect() as connection:
        TaskPeer(connection).deliver("presses")
        expect(pipeline.locator(".panel-head")).to_contain_text("connected")
        expect(pipeline.get_by_text("Last seen")).to_be_hidden()
    expect(pipeline).to_contain_text("disconnected")
    expect(pipeline.get_by_text("Last seen")).to_be_visible()
    expect(pipeline.get_by_test_id("assignment")).to_have_count(0)


def test_token_sees_no_work_of_other_streams(browser: Browser, edge: Site, task: TaskPeer) -> None:
    for stream in ("presses", "camera"):
        task.deliver(stream)
    append(task.connection, "presses", b"1")
    (found,) = task.plan()
    token = edge.make_token(Role.observer, "camera")
    # Events need a token for all streams.
    no_events = r"status of 403.*/api/events"
    with open_page(browser, edge.link(token), no_events) as page:
        go(page, "/pipeline")
        shown = page.get_by_test_id("task").filter(has_text=f"Task {task.name}")
        expect(shown).to_contain_text("Delivering 1 slice of streams that the token does not allow")
        expect(_deliveries(page)).to_have_count(1)
        expect(_deliveries(page)).to_contain_text("camera")
        expect(page.get_by_role("main")).not_to_contain_text("presses")
    commit(task.connection, found)


# Accessibility


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(page: Page, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    for text in ("text", "muted", "link", "good", "warn", "bad"):
        for ground in ("ground", "surface", "raised"):
            assert _contrast(page, f"--{text}", f"--{ground}") >= 4.5, (text, ground)
    assert _contrast(page, "--bad", "--bad-ground") >= 4.5
    assert _contrast(page, "--on-accent", "--accent") >= 4.5
    for line in ("appended", "exported", "behind", "focus"):
        assert _contrast(page, f"--{line}", "--surface") >= 3, line


def _contrast(page: Page, one: str, other: str) -> float:
    """The contrast of two colors of the page, by the formula of WCAG."""
    light, dark = sorted((_luminance(page, one), _luminance(page, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(page: Page, name: str) -> float:
    channels: list[float] = page.evaluate(
        """name => {
            const probe = document.body.appendChild(document.createElement("span"));
            probe.style.color = `var(${name})`;
            return getComputedStyle(probe).color.match(/\\d+/g).slice(0, 3).map(Number);
        }""",
        name,
    )
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4
        for part in (channel / 255 for channel in channels)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_theme_follows_the_system_until_the_user_chooses(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    assert _luminance(page, "--ground") < 0.1
    page.get_by_role("button", name="Theme: system").click()
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    assert _luminance(page, "--ground") > 0.9
    page.reload()
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    assert _luminance(page, "--ground") > 0.9
    page.get_by_role("button", name="Theme: light").click()
    assert _luminance(page, "--ground") < 0.1
    page.get_by_role("button", name="Theme: dark").click()
    page.emulate_media(color_scheme="light")
    assert _luminance(page, "--ground") > 0.9


def test_pages_fit_the_screen_of_a_phone(page: Page) -> None:
    page.set_viewport_size(PHONE)
    for route, heading in ROUTES.items():
        go(page, route)
        _heading(page, heading)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], route
    go(page, "/streams")
    page.get_by_label("Sort by").select_option("Name ↓")
    expect(page.locator(".stream-name").first).to_have_text("plain")


def test_pages_can_be_reached_with_the_keyboard(page: Page) -> None:
    page.reload()
    _heading(page, "Overview")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    for name, heading in (("Streams", "Streams"), ("Events", "Events")):
        link = page.get_by_role("navigation", name="Pages").get_by_role("link", name=name)
        link.focus()
        outline = link.evaluate("link => getComputedStyle(link).outlineStyle")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1, name=heading)).to_be_focused()
        expect(link).to_have_attribute("aria-current", "page")
        assert outline == "solid"


def test_hidden_page_sends_no_requests_and_catches_up_when_visible(
    browser: Browser, dashboard: Dashboard
) -> None:
    with open_page(browser, dashboard.link()) as page:
        _heading(page, "Overview")
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.clock.install()
        # The clock of the page stands still from here, and so does its poll timer.
        page.reload()
        _heading(page, "Overview")
        _show(page, is_hidden=True)
        page.clock.run_for(1000)
        requests.clear()
        page.clock.run_for(60_000)
        assert requests == []
        _show(page, is_hidden=False)
        wait_until(lambda: page.evaluate("1") and requests)


def _show(page: Page, *, is_hidden: bool) -> None:
    page.evaluate(
        """isHidden => {
            Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )


# Modules


def test_modules_never_parse_html() -> None:
    modules = [path for path in PAGE.rglob("*.js") if "vendor" not in path.parts]
    assert len(modules) > 20
    for path in modules:
        found = re.search(r"(inner|outer|Adjacent)HTML|document\.write|eval\(", path.read_text())
        assert found is None, f"{path.name} has {found}"


def test_number_formats(page: Page) -> None:
    wanted: dict[str, dict[float, str]] = {
        "formatBytes": {0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 2**28: "256 MiB"},
        "formatRate": {0: "0/s", 0.25: "0.25/s", 12.34: "12.3/s", 1500: "1.5 k/s", 2e6: "2 M/s"},
        "formatDuration": {
            0: "0 ms",
            999: "999 ms",
            59_000: "59 s",
            61_000: "1 min 1 s",
            7_200_000: "2 h",
            604_800_000: "7 d",
        },
        "formatElapsed": {240: "240 ms", 1449: "1.4 s", 61_000: "1 min 1 s"},
        "formatCount": {1204332: "1,204,332"},
    }
    for function, values in wanted.items():
        got: list[str] = page.evaluate(
            """async ([name, values]) => {
                const format = await import("/page/format.js");
                return values.map((value) => format[name](value));
            }""",
            [function, list(values)],
        )
        assert [text.replace("\u00a0", " ") for text in got] == list(values.values()), function


def test_history_has_gaps_and_drops_old_points(page: Page) -> None:
    columns = page.evaluate(
        """async () => {
            const { History } = await import("/page/history.js");
            const answers = [
                { times: [1000, 2000], series: { messagesAppended: [1, 2] } },
                { times: [9000], series: { messagesAppended: [9], bytesAppended: [90] } },
                { times: [], series: {} },
                { times: Array.from({ length: 298 }, (_, place) => 10000 + 1000 * place),
                  series: { messagesAppended: Array(298).fill(5) } },
            ];
            const history = new History("a stream");
            const asked = [];
            const fetched = window.fetch;
            window.fetch = async (url) => {
                asked.push(url);
                return new Response(JSON.stringify({ stepMillis: 1000, ...answers.shift() }));
            };
            const seen = [];
            for (let round = 0; round < 4; round += 1) {
                await history.refresh();
                seen.push(history.columns("messagesAppended", "bytesAppended"));
            }
            window.fetch = fetched;
            return { asked, seen, means: history.means("messagesAppended")[1] };
        }"""
    )
    assert columns["asked"][:2] == [
        "/api/history?stream=a+stream",
        "/api/history?stream=a+stream&since=2000",
    ]
    assert columns["seen"][1] == [
        [1, 2, 3, 9],
        [1, 2, None, 9],
        [None, None, None, 90],
    ]
    assert columns["seen"][2] == columns["seen"][1]
    times, appended, _ = columns["seen"][3]
    assert len(times) == len(appended) == 300
    assert times[:3] == [3, 9, 10]
    assert columns["means"][:4] == [None, 9, 7, 19 / 3]
    assert columns["means"][-1] == 5


# Unavailable broker and streams


def test_unavailable_broker_is_reported_until_it_returns(browser: Browser, tmp_path: Path) -> None:
    with (
        Dashboard(tmp_path / "root") as dashboard,
        StreamManagerClient(root=dashboard.root) as client,
        open_page(browser, dashboard.link(), NO_ANSWER) as page,
    ):
        _create_stream(client, "plain", *[b"{}"] * 50)
        go(page, "/streams/plain")
        _heading(page, "plain")
        expect(page.get_by_test_id("tile-messages")).to_contain_text("50")
        dashboard.kill()
        banner = page.get_by_text("The broker is unavailable; retrying")
        expect(banner).to_be_visible()
        expect(page.get_by_role("status").first).to_have_text("Unavailable")
        # The old data stays, and is dimmed.
        expect(page.get_by_test_id("tile-messages")).to_contain_text("50")
        expect(page.get_by_role("main")).not_to_have_css("opacity", "1")
        dashboard.start()
        expect(banner).to_be_hidden()
        expect(page.get_by_role("status").first).to_have_text("Live")
        expect(page.get_by_role("main")).to_have_css("opacity", "1")
        client.append_message("plain", b"{}")
        expect(page.get_by_test_id("tile-messages")).to_contain_text("51")


def test_unreadable_stream_is_listed_with_the_reason(browser: Browser, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with Site(root) as site, site.connect() as client:
        create(client, "binary")
    _damage(root, "binary")
    with Site(root) as site, open_page(browser, site.link()) as page:
        expect(page.get_by_role("region", name="Needs attention")).to_contain_text("binary")
        go(page, "/streams")
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name="binary"))
        expect(row).to_have_attribute("data-state", "bad")
        row.get_by_role("link").click()
        alert = page.get_by_role("alert").filter(has_text="This stream cannot be read")
        expect(alert).to_be_visible()


def _damage(root: Path, name: str) -> None:
    with sqlite3.connect(root / "catalog.sqlite") as catalog:
        catalog.execute("UPDATE stream SET definition = CAST('{' AS BLOB) WHERE name = ?", [name])
        ((directory,),) = catalog.execute("SELECT id FROM stream WHERE name = ?", [name]).fetchall()
    catalog.close()
    (root / "streams" / directory / "stream.json").unlink()
    (root / "catalog.backup.sqlite").unlink()
