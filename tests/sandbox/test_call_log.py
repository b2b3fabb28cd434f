"""The ledger: the latest calls, and totals."""

from __future__ import annotations

from penstock.sandbox.ledger import Ledger, LedgerEntry


def entry(service: str = "kinesis", name: str = "a", outcome: str = "ok") -> LedgerEntry:
    return LedgerEntry(service, "PutRecords", name, 5, 3, 2, 100, 1.5, outcome)


def test_calls_are_found_by_service_and_name() -> None:
    ledger = Ledger()
    for service, name in (("kinesis", "a"), ("kinesis", "b"), ("s3", "a")):
        ledger.add(entry(service, name))

    assert len(ledger.calls()) == 3
    assert [call.name for call in ledger.calls("kinesis")] == ["a", "b"]
    assert [call.service for call in ledger.calls(name="a")] == ["kinesis", "s3"]


def test_old_calls_are_forgotten_but_totals_go_on() -> None:
    ledger = Ledger(calls_kept=2)
    for outcome in ("ok", "partial", "InternalFailure"):
        ledger.add(entry(outcome=outcome))

    assert [call.outcome for call in ledger.calls()] == ["partial", "InternalFailure"]
    assert ledger.totals() == {
        "kinesis": {
            "calls": 3,
            "failedCalls": 1,
            "records": 15,
            "stored": 9,
            "refused": 6,
            "bodyBytes": 300,
        }
    }


def test_a_reset_forgets_everything() -> None:
    ledger = Ledger()
    ledger.add(entry())

    ledger.reset()

    assert ledger.calls() == []
    assert ledger.totals() == {}
