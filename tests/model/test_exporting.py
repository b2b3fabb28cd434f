from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.model.exporting import ExportPlan, ExportReport, ExportSlice, Lane, SkippedMessage
from penstock.model.storage import SegmentSummary

REPORT: dict[str, Any] = {
    "lease": "l",
    "stream": "s",
    "streamId": "i",
    "identifier": "e",
    "first": 0,
    "settledEnd": 5,
}


def test_a_plan_is_the_same_after_a_trip_over_the_wire() -> None:
    plan = ExportPlan(
        root="/r",
        instance="i",
        slices=[
            ExportSlice(
                lease="l",
                stream="s",
                stream_id="i",
                kind="http",
                config={"identifier": "e"},
                first=1,
                end=5,
                arrived=[3],
                has_files=True,
                segments=[SegmentSummary(0, 9, 90, 1, 2, 3, 4)],
            )
        ],
    )
    assert msgspec.convert(msgspec.to_builtins(plan), ExportPlan) == plan


def test_a_report_that_says_little_says_that_all_is_well() -> None:
    report = msgspec.convert(REPORT, ExportReport)
    assert (report.arrived, report.skipped, report.error, report.was_slow) == ([], [], "", False)
    assert (report.exported_messages, report.exported_bytes, report.sent_bytes) == (0, 0, 0)
    assert (report.pause_millis, report.elapsed_millis) == (0, 0)
    assert msgspec.convert(msgspec.to_builtins(report), ExportReport) == report


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": -1},
        {"settledEnd": None},
        {"stream": ""},
        {"arrived": [-1]},
        {"arrived": [1] * 1025},
        {"exportedMessages": -1},
        {"skipped": [{"sequenceNumber": 1}]},
        {"error": "x" * 2049},
        {"pauseMillis": -1},
    ],
    ids=str,
)
def test_a_report_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**REPORT, **wrong}, ExportReport)


def test_a_skipped_message_has_a_reason() -> None:
    skipped = msgspec.convert({"sequenceNumber": 4, "reason": "no"}, SkippedMessage)
    assert skipped == SkippedMessage(4, "no")


def test_lanes_are_called_on_the_wire_as_here() -> None:
    assert [lane.value for lane in Lane] == [lane.name for lane in Lane]
