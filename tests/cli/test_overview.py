"""Status snapshots as lines and JSON, and rates."""

from __future__ import annotations

import re
from typing import Any

import pytest

from penstock.cli.output import Line
from penstock.cli.overview import (
    Rate,
    Rates,
    StatusSnapshot,
    export_state,
    rates_between,
    snapshot_lines,
    snapshot_to_dict,
    statistics_of,
)
from penstock.model import (
    ExportDefinition,
    ExportStatus,
    KinesisConfig,
    MessageStreamDefinition,
    MessageStreamInfo,
    StorageStatus,
    StrategyOnFull,
)
from penstock.model.exporting import ExportState
from penstock.model.statistics import DiskStatistics

from .snapshots import export, snapshot, stream


def cells(line: Line) -> list[str]:
    return re.split(r"\s{2,}", line.text)


def row(lines: list[Line], first: str) -> list[str]:
    (found,) = [line for line in lines if line.text.startswith(first + "  ")]
    return cells(found)


# Exports


@pytest.mark.parametrize("state", [*ExportState, "unknown-state"])
def test_export_state_is_the_one_that_the_broker_reports(state: str) -> None:
    reported = export(state=state, messages_behind=3, error_message="no", failures=1)

    assert export_state(reported) == state


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "up-to-date"),
        ({"messages_behind": 3}, "behind"),
        ({"messages_behind": 3, "error_message": "no"}, "failing"),
        ({"messages_behind": 3, "error_message": "no", "skipped_messages": 1}, "behind"),
        ({"messages_behind": 3, "error_message": "no", "is_paused": True}, "paused"),
    ],
)
def test_export_state_follows_from_the_status_without_a_reported_state(
    fields: dict[str, Any], state: str
) -> None:
    assert export_state(export(**fields)) == state


def test_exports_are_ordered_and_colored_by_state() -> None:
    states = ["up-to-date", "unknown-state", "paused", "exporting", "due", "failing", "waiting"]
    exports = [export(identifier=f"e{place}", state=each) for place, each in enumerate(states)]
    lines = snapshot_lines(snapshot(1, stream("s", exports=exports)))[-len(states) :]

    assert [cells(line)[3] for line in lines] == [
        *["failing", "due", "exporting", "waiting", "paused", "up-to-date", "unknown-state"]
    ]
    assert [line.style for line in lines[:2]] == [{"fg": "red"}, {"fg": "yellow"}]
    assert lines[4].style == {"dim": True}


def test_failing_exports_come_first_on_one_line_each() -> None:
    fine = export(identifier="fine", last_exported_sequence_number=7, last_export_time=910_000)
    broken = export(identifier="broken", messages_behind=2, error_message="no\x1b[2J\n  way")
    lines = snapshot_lines(snapshot(1, stream("s", end=8, exports=[fine, broken])))

    assert [cells(line) for line in lines[-2:]] == [
        ["s", "broken", "kinesis", "failing", "2", "-", "never", "no [2J way"],
        ["s", "fine", "kinesis", "up-to-date", "0", "7", "1 min 30 s ago"],
    ]
    assert lines[-2].style == {"fg": "red"}


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"retry_in_millis": 3001}, "failing (retry in 4 s)"),
        ({"retry_in_millis": 300_000}, "failing (retry in 5 min 0 s)"),
        ({"retry_in_millis": 0}, "failing"),
        ({"retry_in_millis": 1}, "failing (retry in 1 s)"),
        ({"retry_in_millis": 1, "state": "paused"}, "paused"),
    ],
)
def test_failing_export_shows_its_retry_time(fields: dict[str, Any], state: str) -> None:
    reported = {"messages_behind": 2, "error_message": "no", "failures": 1, "state": "failing"}
    failing = export(**{**reported, **fields})
    lines = snapshot_lines(snapshot(1, stream("s", end=8, exports=[failing])))

    assert cells(lines[-1])[3] == state


def test_skipped_messages_have_a_column_if_there_are_any() -> None:
    fine, lossy = export(identifier="fine"), export(identifier="lossy", skipped_messages=3)
    lines = snapshot_lines(snapshot(1, stream("s", end=8, exports=[fine, lossy])))

    assert [cells(line)[5:] for line in lines[-3:]] == [
        ["EXPORTED", "SKIPPED", "LAST EXPORT", "ERROR"],
        ["-", "-", "never"],
        ["-", "3", "never"],
    ]


# The broker


def test_refused_connections_are_shown_only_if_there_are_any() -> None:
    (idle, *_) = snapshot_lines(snapshot(61))
    (failing_broker, *_) = snapshot_lines(snapshot(61, requests_failed=1, connections_refused=2))

    assert (
        idle.text == "penstock 1 at 127.0.0.1:8088, up 1 min 1 s, 1 connection, 0 failed requests"
    )
    assert failing_broker.text.endswith("1 connection, 1 failed request, 2 refused connections")


def test_damaged_messages_are_shown() -> None:
    found = stream("s", damaged_messages=2, damage="message 0: why")
    lines = snapshot_lines(snapshot(1, found))
    assert Line("damaged: s: 2 damaged messages, message 0: why", {"fg": "red"}) in lines


def test_low_disk_and_suspended_exports_are_shown() -> None:
    disk = DiskStatistics(
        free_bytes=1 << 20,
        min_free_bytes=8 << 20,
        is_low=True,
        is_full=False,
        refused_messages=3,
    )
    shown = snapshot_lines(snapshot(1, disk=disk, exports_suspended="disk is full"))

    assert [line.text for line in shown[1:3]] == [
        "the disk has 1 MiB free, less than min_free_disk (8 MiB): appends are refused, "
        "3 messages so far",
        "exports are suspended, because their progress cannot be stored: disk is full",
    ]


def test_damaged_stream_is_shown_before_all_others() -> None:
    lines = snapshot_lines(snapshot(1)._replace(unreadable={"bad": "its\nfile is gone"}))

    assert lines[1] == Line("damaged: bad: its file is gone", {"fg": "red"})
    assert lines[-1].text.startswith("no streams; ")


# A server without extensions

DESCRIPTION = MessageStreamInfo(
    definition=MessageStreamDefinition(
        name="s",
        max_size=2000,
        strategy_on_full=StrategyOnFull.RejectNewData,
        export_definition=ExportDefinition(
            kinesis=[
                KinesisConfig("begun", "all"),
                KinesisConfig("new", "all", start_sequence_number=6, disabled=True),
            ]
        ),
    ),
    storage_status=StorageStatus(
        oldest_sequence_number=2, newest_sequence_number=9, total_bytes=80
    ),
    export_statuses=[ExportStatus("begun", 7, 5000, "no way", 30, 3)],
)


def test_statistics_of_a_description() -> None:
    assert statistics_of(DESCRIPTION) == stream(
        "s",
        oldest=2,
        end=10,
        max_size=2000,
        segments=0,
        exports=[
            export(
                identifier="begun",
                messages_behind=2,
                last_exported_sequence_number=7,
                last_export_time=5000,
                error_message="no way",
                exported_bytes=30,
                exported_messages=3,
            ),
            export(identifier="new", is_paused=True, messages_behind=4),
        ],
    )


def test_fields_of_extensions_are_omitted() -> None:
    seen = snapshot(1, statistics_of(DESCRIPTION))._replace(broker=None)
    plain = snapshot_to_dict(seen)
    lines = snapshot_lines(seen)

    assert set(plain) == {"address", "time", "version", "streams", "unreadableStreams"}
    assert set(plain["streams"][0]) == {
        "name",
        "oldestSequenceNumber",
        "newestSequenceNumber",
        "totalBytes",
        "maxSize",
        "exports",
    }
    reported = set(plain["streams"][0]["exports"][0])
    assert not reported & {"skippedMessages", "failures", "retryInMillis", "secondsBehind"}
    assert lines[0].text == "stream manager 1 at 127.0.0.1:8088"
    assert lines[3].text.split() == ["STREAM", "MESSAGES", "SIZE", "FULL", "NUMBERS"]


# JSON


def test_json_has_counters_with_wire_names() -> None:
    seen = snapshot(
        3, stream("s", end=4, exports=[export(messages_behind=4, state="due")]), messages_appended=4
    )
    plain = snapshot_to_dict(seen._replace(unreadable={"bad": "its file is gone"}))

    assert plain["time"] == 1_000_000
    assert plain["uptimeMillis"] == 3000
    assert plain["messagesAppended"] == 4
    assert plain["streams"][0]["segments"] == 1
    assert plain["streams"][0]["exports"][0]["state"] == "due"
    assert plain["streams"][0]["exports"][0]["skippedMessages"] == 0
    assert plain["unreadableStreams"] == [{"name": "bad", "errorMessage": "its file is gone"}]


# Rates


def test_rates_count_messages_since_the_previous_snapshot() -> None:
    before = snapshot(10, stream("s", end=5), messages_appended=5, bytes_appended=50)
    after = snapshot(12, stream("s", end=25), messages_appended=25, bytes_appended=5170)

    rates = rates_between(before, after)
    lines = snapshot_lines(after, rates)

    assert rates == Rates(Rate(10, 2560), Rate(0, 0), {"s": Rate(10, 100)})
    assert row(lines, "appended") == ["appended", "25", "5.05 KiB", "10", "2.5 KiB"]
    assert row(lines, "read") == ["read", "0", "0 B", "0", "0 B"]
    assert row(lines, "s")[1:5] == ["25", "10", "250 B", "100 B"]


def test_dropped_messages_do_not_lower_the_rate() -> None:
    before = snapshot(10, stream("s", oldest=0, end=10))
    after = snapshot(12, stream("s", oldest=10, end=20))

    assert rates_between(before, after).streams == {"s": Rate(5, 50)}


def test_all_messages_of_a_new_stream_count() -> None:
    after = snapshot(12, stream("s", end=20))

    assert rates_between(snapshot(10), after).streams == {"s": Rate(10, 100)}


@pytest.mark.parametrize(
    "before", [None, snapshot(500, stream("s", end=3)), snapshot(1)._replace(broker=None)]
)
def test_rates_are_empty_without_a_snapshot_of_the_same_run(before: StatusSnapshot | None) -> None:
    after = snapshot(2, stream("s", end=9))
    rates = rates_between(before, after)
    lines = snapshot_lines(after, rates)

    assert rates == Rates()
    assert row(lines, "appended")[3:] == ["-", "-"]
    assert row(lines, "s")[1:5] == ["9", "-", "90 B", "-"]


def test_server_without_extensions_has_rates_of_streams() -> None:
    before = snapshot(10, stream("s", end=5))._replace(broker=None)
    after = snapshot(12, stream("s", end=25))._replace(broker=None)

    assert rates_between(before, after) == Rates(streams={"s": Rate(10, 100)})


# Height


@pytest.mark.parametrize("height", [5, 9, 12, 20, 60])
def test_lines_fit_the_height(height: int) -> None:
    streams = [stream(f"stream-{i}", end=i, exports=[export()]) for i in range(20)]
    lines = snapshot_lines(snapshot(2, *streams), Rates(), height)

    assert len(lines) <= height
    hidden = [line.text for line in lines if line.text.startswith("and ")]
    assert bool(hidden) == (height < 60)


def test_busiest_streams_are_shown_if_not_all_fit() -> None:
    before = snapshot(2, *(stream(f"stream-{i:02}", end=1) for i in range(30)))
    after = snapshot(4, *(stream(f"stream-{i:02}", end=9 if i == 17 else 1) for i in range(30)))

    lines = snapshot_lines(after, rates_between(before, after), 14)
    names = [line.text.split()[0] for line in lines if line.text[:7] == "stream-"]

    assert names == [f"stream-{number}" for number in ("17", "00", "01", "02", "03", "04")]
    assert lines[-1].text == "and 24 more streams"
