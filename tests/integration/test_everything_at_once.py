"""`penstock up --sandbox --demo`, viewed in a browser: devices, streams, pipeline and sandbox.

The tests share a run, and undo their changes. They also take the pictures for the documentation.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from penstock import StreamManagerClient
from penstock.cli.credentials import dashboard_link, require_address
from penstock.discovery import is_served
from penstock.model.statistics import ExportStatistics
from penstock.sandbox.client import SandboxClient
from penstock.settings import Settings
from tests.cli.up_process import Up
from tests.support import QUICK_JAVA, TIMEOUT_S, wait_until
from tests.web.browser import (
    NO_ANSWER,
    Tab,
    go,
    open_browser,
    open_page,
    take_picture,
    wants_pictures,
)

# File names of the pictures for the documentation, by route. These pages show no local paths.
PICTURES = {
    "/": "dashboard",
    "/streams/turbine-1": "dashboard-stream",
    "/pipeline": "dashboard-pipeline",
}
PLOTTED_SECONDS = 280
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ +[\w.]+: .")


class Farm:
    """A running `penstock up` with sandbox and demo."""

    def __init__(self, root: Path) -> None:
        self.began = time.monotonic()
        self.up = Up(root, "--sandbox", "--demo", "--port", "0", SPARK_SUBMIT_OPTS=QUICK_JAVA)
        shown = self.up.read_until("Ctrl-C")
        (line,) = [line for line in shown.splitlines() if "exports go to" in line]
        self.cloud = SandboxClient(line.split()[-1])
        # The demo injects no outages while a service has a fault. No export calls this service.
        self.cloud.set_fault("iotanalytics", status=503)
        settings = Settings(root=str(root))
        self.link = dashboard_link(settings, require_address(settings))

    def arrived(self) -> set[bytes]:
        return set(self.cloud.payloads("kinesis", "wind-farm"))

    def find(self, command: str) -> psutil.Process:
        (found,) = self.up.children_of(command)
        return found

    @property
    def is_running(self) -> bool:
        return self.up.process.poll() is None

    def kill(self) -> None:
        children = self.up.children()
        self.up.process.kill()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def farms() -> Iterator[list[Farm]]:
    """The farms that were started. The last one is shared until a test ends it."""
    started: list[Farm] = []
    yield started
    for farm in started:
        if farm.is_running:
            farm.kill()


@pytest.fixture
def farm(farms: list[Farm], tmp_path_factory: pytest.TempPathFactory) -> Farm:
    if not farms or not farms[-1].is_running:
        farms.append(Farm(tmp_path_factory.mktemp("farm") / "root"))
        farms[-1].up.read_until("penstock pipeline ready", TIMEOUT_S)
    return farms[-1]


@pytest.fixture
def tab(browser: Browser, farm: Farm) -> Iterator[Tab]:
    assert farm.link is not None
    tab = Tab(browser, farm.link, viewport={"width": 1280, "height": 860})
    yield tab
    tab.close()


@pytest.fixture
def page(tab: Tab) -> Iterator[Page]:
    yield tab.page
    tab.check()


def export_of(page: Page, stream: str) -> Locator:
    go(page, f"/streams/{stream}")
    return page.get_by_test_id("export")


def statistics_of(client: StreamManagerClient, name: str) -> ExportStatistics:
    (export,) = next(each for each in client.statistics().streams if each.name == name).exports
    return export


def behind(export: Locator) -> int:
    """Returns the number of messages behind that the page shows."""
    text = export.locator(".lag-value").inner_text()
    return 0 if text == "No messages behind" else int(text.split()[0].replace(",", ""))


def is_above_zero(rate: Locator) -> bool:
    return rate.inner_text()[0] in "123456789"


def test_devices_append_exports_arrive_and_plots_advance(page: Page, farm: Farm) -> None:
    plot = page.get_by_test_id("plot-messages")
    expect(plot.locator("canvas")).to_be_visible()
    newest = plot.get_attribute("data-newest") or ""
    appended, exported = plot.locator(".legend-value").all()
    wait_until(lambda: is_above_zero(appended))
    wait_until(lambda: is_above_zero(exported))
    expect(plot).not_to_have_attribute("data-newest", newest)
    wait_until(lambda: len(farm.arrived()) > 10)
    wait_until(lambda: farm.cloud.names("iotsitewise"))
    wait_until(lambda: farm.cloud.records("s3", "wind-farm"))


def test_pipeline_page_shows_tasks_and_a_link_to_the_spark_ui(page: Page) -> None:
    go(page, "/pipeline")
    pipeline = page.get_by_test_id("pipeline")
    expect(pipeline.get_by_test_id("task").first).to_contain_text("deliveries")
    link = pipeline.get_by_role("link", name="Spark UI").get_attribute("href")
    assert link is not None
    assert link.startswith("http://127.0.0.1:")
    answer = page.context.request.get(link)
    assert "Spark" in answer.text()
    rebound = urllib.request.Request(link, headers={"Host": "rebound.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(rebound)
    assert refused.value.code == 403


def test_camera_uploads_are_listed_as_tasks(page: Page) -> None:
    go(page, "/tasks")
    expect(page.get_by_text("success").first).to_be_visible(timeout=TIMEOUT_S * 1000)


def test_paused_export_stops_and_resumed_export_catches_up(page: Page, farm: Farm) -> None:
    export = export_of(page, "turbine-2")
    expect(page.get_by_test_id("messages")).to_contain_text("windSpeed")
    export.get_by_role("button", name="Pause to-kinesis").click()
    expect(export).to_have_attribute("data-state", "paused")
    with StreamManagerClient(root=farm.up.root) as client:
        # Messages in flight still arrive after the pause.
        wait_until(lambda: not statistics_of(client, "turbine-2").is_leased)
        exported = statistics_of(client, "turbine-2").last_exported_sequence_number
        wait_until(lambda: statistics_of(client, "turbine-2").messages_behind >= 30)
        wait_until(lambda: behind(export) >= 30)
        (status,) = client.describe_message_stream("turbine-2").export_statuses
        assert status.last_exported_sequence_number == exported
        newest = client.describe_message_stream("turbine-2").storage_status.newest_sequence_number

        export.get_by_role("button", name="Resume to-kinesis").click()

        wait_until(
            lambda: (
                client.describe_message_stream("turbine-2")
                .export_statuses[0]
                .last_exported_sequence_number
                >= newest
            )
        )
    wait_until(lambda: behind(export) < 30)


def test_outage_shows_as_lag_until_it_ends(page: Page, farm: Farm) -> None:
    export = export_of(page, "turbine-1")
    farm.cloud.set_fault("kinesis", status=503)
    expect(export).to_have_attribute("data-state", "failing")
    expect(export).to_contain_text("ServiceUnavailable")
    wait_until(lambda: behind(export) >= 30)
    go(page, "/")
    expect(page.get_by_label("Needs attention")).to_contain_text("turbine-1")

    farm.cloud.clear_faults("kinesis")

    expect(page.get_by_label("Needs attention")).not_to_contain_text("turbine-1")
    export = export_of(page, "turbine-1")
    wait_until(lambda: behind(export) < 30)


@pytest.mark.skipif(not wants_pictures(), reason="DASHBOARD_PICTURES is not set")
@pytest.mark.timeout(600)
def test_pictures_are_taken_after_plots_have_filled(
    browser: Browser, page: Page, farm: Farm
) -> None:
    # Enables the outages of the demo.
    farm.cloud.clear_faults()
    wait_until(lambda: time.monotonic() - farm.began > PLOTTED_SECONDS, seconds=2 * PLOTTED_SECONDS)
    for route, name in PICTURES.items():
        go(page, route)
        expect(page.locator("main")).to_have_attribute("aria-busy", "false")
        expect(page.locator("main h1")).to_be_visible()
        take_picture(page, name)
    assert farm.link is not None
    phone = {"width": 360, "height": 740}
    for name, options in (("phone", {"viewport": phone}), ("dark", {"color_scheme": "dark"})):
        with open_page(browser, farm.link, **options) as other:
            expect(other.get_by_test_id("plot-behind").locator("canvas")).to_be_visible()
            take_picture(other, f"dashboard-{name}")
    farm.cloud.set_fault("iotanalytics", status=503)


def test_killed_broker_and_pipeline_restart_without_losing_messages(
    page: Page, tab: Tab, farm: Farm
) -> None:
    tab.expect(NO_ANSWER)
    go(page, "/")
    with StreamManagerClient(root=farm.up.root) as client:
        before = [message.payload for message in client.read_all("turbine-1")]
    for process in [farm.find("pipeline"), farm.find("serve")]:
        process.kill()
    farm.up.read_until("penstock ready")
    farm.up.read_until("penstock pipeline ready", TIMEOUT_S)

    with StreamManagerClient(root=farm.up.root) as client:
        wait_until(
            lambda: (
                client.describe_message_stream("turbine-1").storage_status.newest_sequence_number
                > len(before)
            )
        )
        after = [message.payload for message in client.read_all("turbine-1")]
    assert after[: len(before)] == before
    wait_until(lambda: set(after) <= farm.arrived())
    # The page has reconnected.
    expect(page.get_by_test_id("plot-messages")).to_be_visible()
    wait_until(lambda: page.get_by_text("Live").is_visible())


# Late, because the tests share a farm, and this test ends it.
@pytest.mark.late
def test_sigterm_ends_all_processes_cleanly(tab: Tab, farm: Farm) -> None:
    tab.close()
    children = farm.up.children()
    assert len(children) > 3

    farm.up.process.send_signal(signal.SIGTERM)

    code, output = farm.up.end()
    assert code == 0
    # This includes lines from Java, from Spark's workers and from killed processes.
    assert [line for line in output.splitlines() if not LOG_LINE.match(line)] == []
    # The broker ends last.
    assert "broker.server: stopped" in output.splitlines()[-1]
    wait_until(lambda: not any(child.is_running() for child in children))
    # The camera leaves only pictures that the next run will upload.
    camera = farm.up.root.with_name("root-camera")
    assert not camera.exists() or any(camera.iterdir())
    assert not is_served(farm.up.root)
