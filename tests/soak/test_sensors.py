from __future__ import annotations

import json

from soak.checks import Defect
from soak.messages import MessageId
from soak.sensors import compare_entries, identify_entry, make_entry


def test_entry_is_identified() -> None:
    assert identify_entry(json.loads(make_entry(7, 1000.25))) == MessageId("sensor", 7)


def test_lost_wrong_and_reused_entries_are_reported() -> None:
    first, second = MessageId("sensor", 0), MessageId("sensor", 1)
    answered = [(0, first), (1, second)]
    assert compare_entries("s", answered, {0: first, 1: second, 2: MessageId("sensor", 2)}) == []
    (lost,) = compare_entries("s", answered, {0: first})
    (wrong,) = compare_entries("s", answered, {0: first, 1: first})
    (reused, *_) = compare_entries("s", [(0, first), (0, second)], {0: second})
    assert [each.defect for each in (lost, wrong, reused)] == [
        Defect.LOST,
        Defect.WRONG,
        Defect.REUSED,
    ]
