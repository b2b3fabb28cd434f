"""The last event of each task of late."""

from __future__ import annotations

from penstock.broker.exports.recent_tasks import RecentTasks
from penstock.model.status import Status
from tests.broker.exports.workbench import event


def numbers(recent: RecentTasks, stream: str = "s", identifier: str = "e") -> list[int]:
    return [found.sequence_number for found in recent.of(stream, identifier)]


def test_of_each_task_the_last_event_is_kept_the_latest_first() -> None:
    recent = RecentTasks()
    recent.note("s", "e", [event(0, Status.InProgress), event(1, Status.InProgress)])
    recent.note("s", "e", [event(0, Status.Success)])

    assert [(found.sequence_number, found.status) for found in recent.of("s", "e")] == [
        (0, Status.Success),
        (1, Status.InProgress),
    ]


def test_exports_are_told_apart() -> None:
    recent = RecentTasks()
    recent.note("s", "e", [event(1)])
    recent.note("s", "f", [event(2)])
    recent.note("t", "e", [event(3)])

    assert numbers(recent) == [1]
    assert numbers(recent, "s", "f") == [2]
    assert numbers(recent, "t") == [3]
    assert numbers(recent, "nowhere") == []


def test_only_the_latest_of_an_export_are_kept() -> None:
    recent = RecentTasks()
    recent.note("s", "e", [event(number) for number in range(150)])
    assert numbers(recent) == list(range(149, 49, -1))
    recent.note("s", "e", [event(50), event(200)])
    assert numbers(recent) == [200, 50, *range(149, 51, -1)]


def test_exports_of_which_nothing_was_heard_for_long_are_forgotten() -> None:
    recent = RecentTasks()
    for number in range(256):
        recent.note("s", str(number), [event(0)])
    recent.note("s", "0", [event(1)])
    recent.note("s", "another", [event(0)])
    recent.note("s", "of no interest", [])

    assert numbers(recent, "s", "0") == [1, 0]
    assert numbers(recent, "s", "1") == []
    assert numbers(recent, "s", "2") == [0]


def test_an_export_that_is_gone_is_forgotten_and_all_are_counted() -> None:
    recent = RecentTasks()
    recent.note("s", "e", [event(0, Status.InProgress), event(0, Status.Success)])
    recent.note("s", "f", [event(1, Status.Success)])
    recent.forget("s", "e")
    recent.forget("s", "nobody")

    assert numbers(recent) == []
    assert numbers(recent, "s", "f") == [1]
    assert recent.counts == {
        "Success": 2,
        "Failure": 0,
        "InProgress": 1,
        "Warning": 0,
        "Canceled": 0,
    }
