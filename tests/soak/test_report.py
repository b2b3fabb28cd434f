from __future__ import annotations

from soak.checks import Comparison, Fault, Finding
from soak.report import Tally, render
from soak.verification import compare_verification


def test_one_finding_makes_a_soak_fail() -> None:
    tally = Tally()
    tally.count("kills", 3)
    tally.add(Comparison([], intact=5, damaged=1))
    assert tally.is_clean
    tally.find([Finding(Fault.LOST, "stream", "7 is not there")])
    assert not tally.is_clean
    result = {"seed": 1, "seconds": 60.0, **tally.to_json()}
    assert result["found"]["lost"] == 1
    table = render(result)
    assert "| kills | 3 |" in table
    assert "| **lost** | **1** |" in table
    assert "7 is not there" in table


def test_damage_that_verify_reports_must_have_been_done() -> None:
    report = {"streams": [{"name": "a", "damage": [{"count": 1}]}, {"name": "b", "damage": []}]}
    assert compare_verification(report, {"a": {5}}) == []
    (finding,) = compare_verification(report, {"b": {5}})
    assert finding.where == "a"
