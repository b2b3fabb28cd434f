"""The latest calls, and totals."""

from __future__ import annotations

from penstock.sandbox.call_log import CallLog, LoggedCall


def entry(service: str = "kinesis", name: str = "a", outcome: str = "ok") -> LoggedCall:
    return LoggedCall(service, "PutRecords", name, 5, 3, 2, 100, 1.5, outcome)


def test_calls_are_found_by_service_and_name() -> None:
    call_log = CallLog()
    for service, name in (("kinesis", "a"), ("kinesis", "b"), ("s3", "a")):
        call_log.add(entry(service, name))

    assert len(call_log.calls()) == 3
    assert [call.name for call in call_log.calls("kinesis")] == ["a", "b"]
    assert [call.service for call in call_log.calls(name="a")] == ["kinesis", "s3"]


def test_old_calls_are_evicted_and_totals_continue() -> None:
    call_log = CallLog(max_calls=2)
    for outcome in ("ok", "partial", "InternalFailure"):
        call_log.add(entry(outcome=outcome))

    assert [call.outcome for call in call_log.calls()] == ["partial", "InternalFailure"]
    assert call_log.totals() == {
        "kinesis": {
            "calls": 3,
            "failedCalls": 1,
            "records": 15,
            "stored": 9,
            "refused": 6,
            "bodyBytes": 300,
        }
    }


def test_reset_removes_calls_and_totals() -> None:
    call_log = CallLog()
    call_log.add(entry())

    call_log.reset()

    assert call_log.calls() == []
    assert call_log.totals() == {}
