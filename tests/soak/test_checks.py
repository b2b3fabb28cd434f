"""The checks of a soak detect each kind of defect."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from soak.checks import Defect, Expected, Found, compare, compare_arrivals
from soak.messages import MessageId

COUNT = 20


def message(counter: int, source: str = "s") -> MessageId:
    return MessageId(source, counter)


EXPECTED = Expected([(number, message(number)) for number in range(COUNT)], {"s": COUNT + 5})
FOUND = Found(0, 0, COUNT, {number: message(number) for number in range(COUNT)})


def defects(expected: Expected, found: Found) -> Counter[Defect]:
    return Counter(finding.defect for finding in compare("stream", expected, found).findings)


def without(*numbers: int) -> dict[int, MessageId | None]:
    return {number: it for number, it in FOUND.messages.items() if number not in numbers}


def test_an_intact_stream_has_no_findings() -> None:
    comparison = compare("stream", EXPECTED, FOUND)
    assert comparison.findings == []
    assert comparison.intact == COUNT


def test_missing_newest_message_is_lost() -> None:
    found = replace(FOUND, messages=without(COUNT - 1), end=COUNT - 1)
    assert defects(EXPECTED, found) == {Defect.LOST: 1}


def test_missing_message_in_the_middle_is_lost_and_a_gap() -> None:
    found = replace(FOUND, messages=without(7))
    assert defects(EXPECTED, found) == {Defect.LOST: 1, Defect.WRONG: 1}


def test_acknowledged_message_that_reads_as_damaged_is_lost() -> None:
    found = replace(FOUND, messages=without(7), damaged=[range(7, 8)])
    assert defects(EXPECTED, found)[Defect.LOST] == 1


def test_other_message_under_a_number_is_wrong() -> None:
    found = replace(FOUND, messages={**FOUND.messages, 7: message(COUNT)})
    assert defects(EXPECTED, found)[Defect.WRONG] == 1


def test_bytes_that_were_not_sent_are_wrong() -> None:
    found = replace(FOUND, messages={**FOUND.messages, COUNT: None}, end=COUNT + 1)
    assert defects(EXPECTED, found) == {Defect.WRONG: 1}


def test_number_that_is_assigned_twice_is_reused() -> None:
    expected = replace(EXPECTED, answered=[*EXPECTED.answered, (7, message(COUNT))])
    assert defects(expected, FOUND)[Defect.REUSED] == 1


def test_message_that_is_stored_twice_is_a_duplicate() -> None:
    found = replace(FOUND, messages={**FOUND.messages, COUNT: message(COUNT - 1)}, end=COUNT + 1)
    assert defects(EXPECTED, found) == {Defect.DUPLICATE: 1}


def test_swapped_messages_of_a_source_are_out_of_order() -> None:
    swapped = {**FOUND.messages, 3: message(4), 4: message(3)}
    expected = replace(EXPECTED, answered=[])
    assert defects(expected, replace(FOUND, messages=swapped)) == {Defect.DISORDER: 1}


def test_unacknowledged_message_may_be_stored() -> None:
    found = replace(FOUND, messages={**FOUND.messages, COUNT: message(COUNT)}, end=COUNT + 1)
    assert defects(EXPECTED, found) == {}


def test_refused_message_must_not_be_stored() -> None:
    found = replace(FOUND, messages={**FOUND.messages, COUNT: message(COUNT)}, end=COUNT + 1)
    expected = replace(EXPECTED, refused=frozenset([message(COUNT)]))
    assert defects(expected, found) == {Defect.WRONG: 1}


@pytest.mark.parametrize("stranger", [message(COUNT + 5), message(0, "other")])
def test_message_that_was_not_sent_to_the_stream_is_wrong(stranger: MessageId) -> None:
    found = replace(FOUND, messages={**FOUND.messages, COUNT: stranger}, end=COUNT + 1)
    assert defects(EXPECTED, found) == {Defect.WRONG: 1}


def test_damage_must_be_reported_and_costs_only_the_damaged_messages() -> None:
    expected = replace(EXPECTED, damaged=frozenset([7]))
    reported = replace(FOUND, messages=without(7), damaged=[range(7, 8)])
    comparison = compare("stream", expected, reported)
    assert comparison.findings == []
    assert (comparison.intact, comparison.damaged) == (COUNT - 1, 1)
    too_many = replace(FOUND, messages=without(7, 8), damaged=[range(7, 9)])
    assert defects(expected, too_many) == {Defect.LOST: 1}
    cut_off = replace(FOUND, messages=without(*range(7, COUNT)), end=7)
    assert defects(expected, cut_off)[Defect.LOST] == COUNT - 7


def test_unexpected_damage_is_wrong() -> None:
    found = replace(FOUND, damaged=[range(COUNT, COUNT + 2)], end=COUNT + 2)
    assert defects(EXPECTED, found) == {Defect.WRONG: 1}


def test_evicted_messages_are_lost_unless_the_stream_may_evict() -> None:
    found = replace(FOUND, messages=without(0, 1), oldest=2)
    assert defects(EXPECTED, found) == {Defect.LOST: 3}
    assert defects(replace(EXPECTED, drops=True), found) == {}


def test_power_cut_may_lose_only_unsynced_messages() -> None:
    expected = replace(EXPECTED, volatile=frozenset([18, 19]), is_after_power_cut=True)
    assert defects(expected, replace(FOUND, messages=without(18, 19), end=18)) == {}
    torn = replace(FOUND, messages=without(18, 19), damaged=[range(18, 20)])
    assert defects(expected, torn) == {}
    assert defects(expected, replace(FOUND, messages=without(17, 18, 19), end=17)) == {
        Defect.LOST: 1
    }


# Arrivals

EXPORTED = {number: message(number) for number in range(5)}


def arrival_defects(*counters: int, **options: bool | int) -> Counter[Defect]:
    arrivals = [message(counter) for counter in counters]
    findings = compare_arrivals("export", EXPORTED, arrivals, **options)  # type: ignore[arg-type]
    return Counter(finding.defect for finding in findings)


def test_repeated_arrivals_are_allowed_with_at_least_once() -> None:
    assert arrival_defects(0, 1, 2, 0, 1, 2, 3, 4) == {}


def test_repeated_arrivals_are_duplicates_with_exactly_once() -> None:
    assert arrival_defects(0, 1, 1, 2, 3, 4, exactly_once=True) == {Defect.DUPLICATE: 1}


def test_message_that_never_arrives_is_lost() -> None:
    assert arrival_defects(0, 1, 3, 4) == {Defect.LOST: 1}


def test_first_arrivals_are_in_order() -> None:
    assert arrival_defects(0, 2, 1, 3, 4) == {Defect.DISORDER: 1}
    assert arrival_defects(0, 2, 1, 3, 4, max_displacement=1) == {}


def test_arrival_of_an_unknown_message_is_wrong() -> None:
    assert arrival_defects(0, 1, 2, 3, 4, 5) == {Defect.WRONG: 1}
