"""The courier of a task: real deliveries over HTTP, to a cloud in which things hang and fail."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from penstock import IoTAnalyticsConfig
from penstock.errors import ResourceNotFoundException
from penstock.model.exporting import ExportReport, SliceHeader
from penstock.model.validation import to_wire
from penstock.pipeline.courier import Courier
from penstock.pipeline.destinations.destination import DestinationSettings
from penstock.pipeline.lanes import LaneLimits
from penstock.pipeline.messenger import Echo
from penstock.sandbox.server import Sandbox
from tests.pipeline.slices import header_for, messages_of
from tests.support import PATIENCE_S, wait_until

# So that nothing here depends on how fast the machine is.
_AMPLE = LaneLimits(seconds=PATIENCE_S, patience=PATIENCE_S, is_parallel=True)
# For those that are waited for in vain.
_SHORT = LaneLimits(seconds=1.0, patience=1.5, is_parallel=True)


@pytest.fixture(autouse=True)
def _threads_end(cloud: Sandbox) -> Iterator[None]:
    cloud.clear_faults()
    yield
    cloud.clear_faults()
    wait_until(lambda: not threads())


def threads() -> list[threading.Thread]:
    return [it for it in threading.enumerate() if it.name == "penstock-courier"]


@pytest.fixture
def endless() -> Iterator[str]:
    """The URL of a server that answers byte by byte, so that no time-out applies, for ever."""
    is_over = threading.Event()

    def answer(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not is_over.wait(0.05):
                client.sendall(b"x")

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        is_over.set()
        listener.shutdown(socket.SHUT_RDWR)


def courier(limits: LaneLimits = _AMPLE, most_threads: int = 8) -> Courier:
    return Courier(
        limits,
        most_threads,
        DestinationSettings(),
        lambda _: Echo(True, False),
        lambda header: header.root,
    )


def send(
    courier: Courier, cloud: Sandbox, stream: str, count: int = 1, arrived: tuple[int, ...] = ()
) -> None:
    """To a sink that is called as the stream is."""
    header = header_for(cloud.http_url(stream), stream, end=count, arrived=arrived)
    courier.send(header, messages_of(header))


def by_stream(reports: list[ExportReport]) -> dict[str, ExportReport]:
    return {report.stream: report for report in reports}


def test_what_is_delivered_is_reported_with_its_lease(cloud: Sandbox) -> None:
    sent = courier()
    send(sent, cloud, "whole", 3)

    (report,) = sent.finish()

    assert cloud.payloads("http", "whole") == [b"0", b"1", b"2"]
    assert (report.lease, report.stream, report.stream_id, report.identifier) == (
        "lease of whole",
        "whole",
        "id of whole",
        "to-http",
    )
    assert (report.first, report.settled_end, report.arrived) == (0, 3, [])
    assert (report.exported_messages, report.exported_bytes, report.sent_bytes) == (3, 3, 3)
    assert (report.error, report.was_slow, report.skipped) == ("", False, [])


def test_one_that_was_given_nothing_has_nothing_to_tell() -> None:
    assert courier().finish() == []


def test_deliveries_go_side_by_side(cloud: Sandbox) -> None:
    names = ["side-1", "side-2", "side-3"]
    for name in names:
        cloud.set_fault("http", name=name, hang=True)
    sent = courier(most_threads=3)

    for name in names:
        send(sent, cloud, name)

    # All of them are there before the first is answered.
    wait_until(lambda: [it["callsMet"] for it in cloud.faults()] == [1, 1, 1])
    cloud.clear_faults()
    assert {report.error for report in sent.finish()} == {""}


def test_the_first_given_goes_first(cloud: Sandbox) -> None:
    names = [f"turn-{number}" for number in range(5)]
    sent = courier(most_threads=1)
    for name in names:
        send(sent, cloud, name)

    reports = sent.finish()

    assert [report.stream for report in reports] == names
    assert [call["name"] for call in cloud.calls("http")] == names


def test_more_than_there_are_threads_for_are_delivered_all_the_same(cloud: Sandbox) -> None:
    names = [f"many-{number}" for number in range(20)]
    sent = courier(most_threads=3)
    for name in names:
        send(sent, cloud, name)

    reports = sent.finish()

    assert {report.stream for report in reports} == set(names)
    assert all(report.settled_end == 1 for report in reports)


def test_of_those_that_were_not_begun_in_time_nothing_is_told(cloud: Sandbox) -> None:
    cloud.set_fault("http", name="in the way", hang=True)
    # It is waited for beyond the time in which something may be begun.
    sent = courier(_SHORT, most_threads=1)
    send(sent, cloud, "in the way")
    send(sent, cloud, "behind it")

    reports = sent.finish()

    assert [report.stream for report in reports] == ["in the way"]
    cloud.clear_faults()
    wait_until(lambda: not threads())
    assert "behind it" not in cloud.names("http")


def test_time_begins_with_the_first_slice_however_long_it_took_to_read(cloud: Sandbox) -> None:
    began = time.monotonic()
    sent = courier(LaneLimits(seconds=1.0, patience=PATIENCE_S, is_parallel=True))
    wait_until(lambda: time.monotonic() > began + 1.0)

    send(sent, cloud, "late")

    assert [report.settled_end for report in sent.finish()] == [1]


def test_one_that_times_out_was_slow_and_the_others_were_not(cloud: Sandbox) -> None:
    cloud.set_fault("http", name="hangs", hang=True)
    sent = courier(_SHORT)
    send(sent, cloud, "answers")
    send(sent, cloud, "hangs")

    reports = by_stream(sent.finish())

    answered, hung = reports["answers"], reports["hangs"]
    assert (answered.settled_end, answered.error, answered.was_slow) == (1, "", False)
    assert (hung.settled_end, hung.exported_messages, hung.was_slow) == (0, 0, True)
    assert "timed out" in hung.error


def test_one_whose_answer_never_ends_is_left_behind(cloud: Sandbox, endless: str) -> None:
    sent = courier(_SHORT)
    send(sent, cloud, "answers")
    header = header_for(endless, "never ends")
    sent.send(header, messages_of(header))

    reports = by_stream(sent.finish())

    assert (reports["answers"].settled_end, reports["answers"].error) == (1, "")
    left = reports["never ends"]
    assert (left.settled_end, left.exported_messages, left.was_slow) == (0, 0, True)
    assert re.fullmatch(r"no answer in \d\.\d seconds", left.error)
    # It is still at it, and that is what the report does not wait for.
    assert len(threads()) == 1


def test_what_arrived_before_it_hung_is_reported(cloud: Sandbox) -> None:
    sent = courier(LaneLimits(seconds=PATIENCE_S, patience=1.0, is_parallel=True))
    header = header_for(cloud.http_url("halfway"), "halfway", end=20_000)
    sent.send(header, messages_of(header))
    wait_until(lambda: len(cloud.payloads("http", "halfway")) >= 2)
    cloud.set_fault("http", name="halfway", hang=True)

    (report,) = sent.finish()

    arrived = len(cloud.payloads("http", "halfway"))
    assert report.settled_end == report.exported_messages == arrived >= 2
    assert report.was_slow


def test_numbers_that_had_arrived_before_stay_in_the_report(cloud: Sandbox) -> None:
    cloud.set_fault("http", name="refuses", status=503)
    sent = courier()
    send(sent, cloud, "refuses", 5, arrived=(2, 4))

    (report,) = sent.finish()

    assert (report.settled_end, report.arrived) == (0, [2, 4])
    assert "503" in report.error
    assert not report.was_slow


def test_numbers_that_had_arrived_are_forgotten_once_all_before_them_have(cloud: Sandbox) -> None:
    sent = courier()
    send(sent, cloud, "fills up", 5, arrived=(2, 4))

    (report,) = sent.finish()

    assert cloud.payloads("http", "fills up") == [b"0", b"1", b"3"]
    assert (report.settled_end, report.arrived, report.missing) == (5, [], 0)


def test_those_that_could_not_be_read_are_counted_once_they_are_passed(cloud: Sandbox) -> None:
    header = header_for(cloud.http_url("torn"), "torn", end=6, arrived=(3,))
    # Damaged: 1 and 5.
    left = messages_of(header).pick([0, 2, 3])
    assert left.numbers == [0, 2, 4]
    sent, refused = courier(), courier()
    sent.send(header, left)
    (report,) = sent.finish()
    assert (report.settled_end, report.missing) == (6, 2)

    cloud.set_fault("http", name="torn", status=503)
    refused.send(header, left.pick([1, 2]))
    (report,) = refused.finish()
    assert (report.settled_end, report.missing) == (2, 2)


def test_that_a_destination_wants_to_be_left_alone_is_passed_on(cloud: Sandbox) -> None:
    cloud.set_fault("http", name="busy", status=429, retry_after=7)
    sent = courier()
    send(sent, cloud, "busy")

    (report,) = sent.finish()

    assert report.pause_millis == 7000


def test_a_message_that_is_never_taken_is_reported_with_the_reason(cloud: Sandbox) -> None:
    cloud.set_fault("http", name="picky", status=400, for_calls=1)
    sent = courier()
    send(sent, cloud, "picky", 2)

    (report,) = sent.finish()

    assert report.settled_end == 2
    (skipped,) = report.skipped
    assert skipped.sequence_number == 0
    assert "400" in skipped.reason


def test_whatever_goes_wrong_is_told_as_an_error(
    cloud: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    header = header_for(cloud.http_url("x"), kind="no such kind")
    sent = courier()
    sent.send(header, messages_of(header))

    (report,) = sent.finish()

    assert report.error == "KeyError: 'no such kind'"
    assert report.settled_end == 0
    assert not report.was_slow


def test_broker_that_does_not_say_where_its_files_are_is_an_error_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def find_root(_: SliceHeader) -> str | None:
        raise ResourceNotFoundException("it was deleted")

    header = header_for("http://unused")
    channel = msgspec.structs.replace(
        header.slice, kind="iot_analytics", config=to_wire(IoTAnalyticsConfig("a", "channel"))
    )
    header = msgspec.structs.replace(header, slice=channel)
    sent = Courier(_AMPLE, 1, DestinationSettings(), lambda _: Echo(True, False), find_root)
    sent.send(header, messages_of(header))

    (report,) = sent.finish()

    assert report.error.startswith("the broker does not say where its files are: ")
    assert not caplog.records
