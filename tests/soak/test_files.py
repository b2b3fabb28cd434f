from __future__ import annotations

from penstock import Status
from soak.checks import Defect
from soak.files import Task, compare_tasks

TASKS = {0: Task("a", "digest of a"), 1: Task("b", "digest of b")}
ENDED = {0: [Status.InProgress, Status.Success], 1: [Status.Success, Status.Success]}
OBJECTS = {"a": "digest of a", "b": "digest of b", "c": "of an unacknowledged task"}


def defects(
    statuses: dict[int, list[Status]] | None = None, objects: dict[str, str] | None = None
) -> list[Defect]:
    findings = compare_tasks("files", TASKS, ENDED | (statuses or {}), objects or OBJECTS)
    return [finding.defect for finding in findings]


def test_successful_tasks_have_no_findings() -> None:
    assert defects() == []


def test_unfinished_task_is_lost() -> None:
    assert defects({1: [Status.InProgress]}) == [Defect.LOST]
    assert defects({1: []}) == [Defect.LOST]


def test_failed_task_is_wrong() -> None:
    assert defects({1: [Status.Failure]}) == [Defect.WRONG]


def test_missing_or_different_object_is_reported() -> None:
    assert defects(objects={"a": "digest of a"}) == [Defect.LOST]
    assert defects(objects={**OBJECTS, "b": "other"}) == [Defect.WRONG]
