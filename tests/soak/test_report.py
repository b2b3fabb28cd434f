from __future__ import annotations

from soak.checks import CheckResult, Defect, Finding
from soak.report import Tally, render
from soak.verification import compare_verification


def test_single_finding_makes_the_result_unclean() -> None:
    tally = Tally()
    tally.count("kills", 3)
    tally.add_result(CheckResult([], intact=5, damaged=1))
    assert tally.is_clean
    tally.add_findings([Finding(Defect.LOST, "stream", "7 is missing")])
    assert not tally.is_clean
    result = {"seed": 1, "seconds": 60.0, **tally.to_json()}
    assert result["found"]["lost"] == 1
    table = render(result)
    assert "| kills | 3 |" in table
    assert "| **lost** | **1** |" in table
    assert "7 is missing" in table


def test_appends_without_a_producer_are_counted_as_others() -> None:
    tally = Tally()
    tally.count("appends answered", 10)
    assert tally.to_json()["tried"] == {"appends answered": 10}
    tally.count("appends refused", 2)
    tally.count("of these by AWS SDK", 4)
    tally.count("of these by pipelined", 5)
    assert list(tally.to_json()["tried"].items()) == [
        ("appends answered", 10),
        ("of these by AWS SDK", 4),
        ("of these by pipelined", 5),
        ("of these by others", 1),
        ("appends refused", 2),
    ]


def test_verify_must_report_exactly_the_unreadable_numbers() -> None:
    damage = {"firstSequenceNumber": 5, "lastSequenceNumber": 6}
    report = {"streams": [{"name": "a", "damage": [damage]}, {"name": "b", "damage": []}]}
    assert compare_verification(report, {"a": [range(5, 6), range(6, 7)]}) == []
    assert [each.where for each in compare_verification(report, {})] == ["a"]
    both = compare_verification(report, {"a": [range(5, 8)], "b": [range(1)]})
    assert [each.where for each in both] == ["a", "b"]
