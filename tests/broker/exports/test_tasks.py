"""What is told of tasks that go, whatever became of their messages."""

from __future__ import annotations

import logging

import pytest

from penstock.broker.exports import tasks
from penstock.broker.exports.tasks import Loss, cancel_tasks
from penstock.model.status import Status
from penstock.store.log import FileLog, Log
from penstock.store.record import data_path
from tests.broker.exports.workbench import Workbench, task

LOSS = Loss("the stream was deleted", 5)


def found(log: Log, first: int = 0, end: int | None = None) -> list[tuple[int, str | None]]:
    """The numbers, and the keys of tasks that could be read."""
    events = cancel_tasks(log, first, log.end if end is None else end, LOSS)
    return [(each.sequence_number, each.task["key"] if each.task else None) for each in events]


def test_each_task_is_canceled_with_the_reason(bench: Workbench) -> None:
    stream = bench.create_tasks("s", 3)
    (event,) = cancel_tasks(stream.log, 1, 2, LOSS)
    assert (event.sequence_number, event.status) == (1, Status.Canceled)
    assert (event.message, event.time, event.task) == ("the stream was deleted", 5, task(1))


@pytest.mark.parametrize("payload", [b"x", b"[]", b'{"bucket": "b"}', b"\xff", b"1"])
def test_a_message_that_is_no_task_has_none(bench: Workbench, payload: bytes) -> None:
    stream = bench.create_tasks("s", 1)
    stream.append([payload], bench.now)
    assert found(stream.log) == [(0, "key/0"), (1, None)]


def test_they_are_read_from_all_segments(bench: Workbench) -> None:
    stream = bench.create_tasks("s", 60, streamSegmentSize=1024)
    assert stream.log.segment_count > 3
    assert found(stream.log, 2, 59) == [(number, f"key/{number}") for number in range(2, 59)]


def test_what_is_damaged_or_lost_is_told_of_all_the_same(bench: Workbench) -> None:
    stream = bench.create_tasks("s", 60, streamSegmentSize=1024)
    assert isinstance(stream.log, FileLog)
    stream.log.work()
    first, second, third = [segment.first for segment in stream.log.segments()[:3]]
    directory = bench.store.root / "streams" / stream.stored.id
    data_path(directory, second).unlink()
    data_path(directory, first).write_bytes(b"y" * 20)
    expected = [(number, None) for number in range(third)]
    assert found(stream.log) == [*expected, *[(n, f"key/{n}") for n in range(third, 60)]]


def test_there_is_an_end_to_what_is_told(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "_MOST_TASKS", 5)
    stream = bench.create_tasks("s", 8)
    assert found(stream.log, 3) == [(number, f"key/{number}") for number in range(3, 8)]
    assert caplog.records == []
    assert [number for number, _ in found(stream.log, 1)] == [1, 2, 3, 4, 5]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "7 S3 tasks are canceled (the stream was deleted)" in record.getMessage()
