from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.model.exporting import (
    MAX_ARRIVED,
    MAX_REASON_LENGTH,
    MAX_SKIPPED,
    DeliveryReport,
    ExportPlan,
    ExportState,
    MessageSlice,
    SkippedMessage,
    TaskEvent,
    TaskSlice,
    Upload,
    UploadAbort,
)
from penstock.model.status_message import Status
from penstock.model.storage import SegmentSummary
from penstock.model.validation import to_wire

REPORT: dict[str, Any] = {
    "lease": "l",
    "stream": "s",
    "streamId": "i",
    "identifier": "e",
    "first": 0,
    "settledEnd": 5,
}

SLICE: dict[str, Any] = {
    "lease": "l",
    "stream": "s",
    "identifier": "e",
    "stream_id": "i",
    "config": {"identifier": "e"},
    "first": 1,
    "end": 5,
    "arrived": [3],
    "has_files": True,
    "segments": [SegmentSummary(0, 9, 90, 1, 2, 3, 4)],
}

UPLOAD = Upload(
    sequence_number=2,
    bucket="b",
    key="k",
    upload_id="u",
    began=5,
    fingerprint="f",
    size=30,
    part_size=10,
    parts=["a", "", "c"],
)


@pytest.mark.parametrize("encode", [msgspec.to_builtins, to_wire])
def test_plan_survives_a_round_trip(encode: Any) -> None:
    plan = ExportPlan(
        root="/r",
        instance="i",
        work=[
            MessageSlice(kind="http", **SLICE),
            TaskSlice(
                kind="s3_task_executor",
                uploads=[UPLOAD],
                time_to_live=60_000,
                is_metered=True,
                **SLICE,
            ),
            UploadAbort(lease="m", stream="s", identifier="e", upload=UPLOAD),
        ],
        waiting=3,
        tasks=2,
        lost=["n"],
        ending=["o"],
        stops=True,
    )
    assert msgspec.convert(encode(plan), ExportPlan) == plan


@pytest.mark.parametrize(
    ("work", "tag"),
    [
        (MessageSlice(kind="http", **SLICE), "messages"),
        (TaskSlice(kind="s3_task_executor", **SLICE), "tasks"),
        (UploadAbort(lease="l", stream="s", identifier="e", upload=UPLOAD), "abort"),
    ],
)
def test_kinds_of_work_have_names_on_the_wire(work: Any, tag: str) -> None:
    assert msgspec.to_builtins(work)["work"] == tag


def test_plan_without_optional_fields_is_empty() -> None:
    plan = msgspec.convert({"root": "/r", "instance": "i", "work": []}, ExportPlan)
    assert (plan.waiting, plan.tasks, plan.stops) == (0, 0, False)
    assert (plan.lost, plan.ending) == ([], [])


def test_report_without_optional_fields_is_a_final_success() -> None:
    report = msgspec.convert(REPORT, DeliveryReport)
    assert (report.arrived, report.skipped, report.error, report.is_final) == ([], [], "", True)
    assert (report.exported_messages, report.exported_bytes, report.sent_bytes) == (0, 0, 0)
    assert (report.pause_millis, report.missing) == (0, 0)
    assert (report.events, report.uploads, report.abandoned) == ([], [], [])
    assert msgspec.convert(msgspec.to_builtins(report), DeliveryReport) == report


def test_report_about_an_abort_needs_no_messages() -> None:
    fields = {"lease": "l", "stream": "s", "identifier": "e", "first": 3}
    report = msgspec.convert(fields, DeliveryReport)
    assert (report.first, report.settled_end, report.stream_id) == (3, 0, "")


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease": None},
        {"first": -1},
        {"settledEnd": None},
        {"stream": ""},
        {"identifier": ""},
        {"arrived": [-1]},
        {"arrived": [1] * (MAX_ARRIVED + 1)},
        {"exportedMessages": -1},
        {"missing": -1},
        {"skipped": [{"sequenceNumber": 1}]},
        {"skipped": [{"sequenceNumber": 1, "reason": "x"}] * (MAX_SKIPPED + 1)},
        {"error": "x" * (MAX_REASON_LENGTH + 1)},
        {"pauseMillis": -1},
        {"isFinal": 1},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_invalid_report_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**REPORT, **wrong}, DeliveryReport)


def test_skipped_message_has_a_reason() -> None:
    skipped = msgspec.convert({"sequenceNumber": 4, "reason": "no"}, SkippedMessage)
    assert skipped == SkippedMessage(4, "no")


def test_upload_counts_the_parts_that_have_arrived() -> None:
    assert UPLOAD.arrived_parts == 2


@pytest.mark.parametrize("status", Status)
def test_tasks_end_with_success_failure_or_cancellation(status: Status) -> None:
    event = TaskEvent(sequence_number=1, status=status, message="", time=5)
    ends = (Status.Success, Status.Failure, Status.Canceled)
    assert event.ends_task is (status in ends)


def test_states_of_exports_have_readable_names() -> None:
    assert [state.value for state in ExportState] == [
        "up-to-date",
        "waiting",
        "due",
        "exporting",
        "failing",
        "paused",
    ]
