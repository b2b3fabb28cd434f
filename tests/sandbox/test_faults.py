"""Faults: what is a fault, and what the switches decide."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.sandbox.faults import ALLOWED, Fault, FaultError, Faults, Verdict, read_fault


class ManualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def faults(clock: ManualClock) -> Faults:
    return Faults(clock)


def decide(faults: Faults, name: str = "a", count: int = 1, service: str = "kinesis") -> Verdict:
    return faults.decide(service, "PutRecords", (name,), (name,) * count)


def is_well(verdict: Verdict) -> bool:
    return verdict == Verdict()


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ({}, "service: is missing; it has to be one of kinesis, s3"),
        ({"service": "sqs"}, "service: has to be one of kinesis, s3"),
        ({"service": "s3", "refuseEvery": 0}, "refuseEvery: has to be a whole number, 1 or more"),
        ({"service": "s3", "throttle": "yes"}, "throttle: has to be true or false"),
        ({"service": "s3", "status": 200}, "status: has to be an HTTP status from 400 to 599"),
        ({"service": "s3", "hangs": True}, "hangs: there is no such field, but service, name"),
        ({"service": "s3"}, "set one of refuseEvery, throttle, status, hang, down, delayMillis"),
        ({"service": "s3", "throttle": True, "status": 503}, "leave out one of throttle, status"),
        ({"service": "s3", "hang": True, "refuseWith": "X"}, "refuseWith: goes with refuseEvery"),
        ({"service": "s3", "hang": True, "code": "X"}, "code: goes with status or throttle"),
        ({"service": "s3", "down": True, "retryAfter": 1}, "retryAfter: goes with status"),
        ([], "a fault is a JSON object"),
    ],
)
def test_what_is_no_fault_is_told_with_its_field_and_what_is_allowed(
    fault: Any, complaint: str
) -> None:
    with pytest.raises(FaultError) as raised:
        read_fault(msgspec.json.encode(fault))

    assert complaint in str(raised.value)


def test_what_is_no_json_is_told() -> None:
    with pytest.raises(FaultError, match="a fault is a JSON object"):
        read_fault(b"{")


def test_every_field_has_a_word_about_what_is_allowed() -> None:
    assert list(ALLOWED) == [field.encode_name for field in msgspec.structs.fields(Fault)]


def test_the_page_about_the_sandbox_has_all_fields_and_its_examples_are_faults() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text()

    examples = re.findall(r"faults -d '(.*?)'", page, re.DOTALL)
    assert len(examples) > 4
    for example in examples:
        read_fault(example.encode())
    assert all(f"| `{field}" in page for field in ALLOWED)


def test_without_faults_all_is_well(faults: Faults) -> None:
    assert is_well(decide(faults))


def test_a_fault_is_for_its_service_name_and_operation_only(faults: Faults) -> None:
    faults.put(Fault("kinesis", name="a", operation="PutRecords", down=True))

    assert decide(faults).is_down
    assert is_well(decide(faults, name="b"))
    assert is_well(decide(faults, service="s3"))
    assert is_well(faults.decide("kinesis", "GetRecords", ("a",), ()))


def test_a_star_is_for_all_services(faults: Faults) -> None:
    faults.put(Fault("*", down=True))

    assert decide(faults, service="iotsitewise").is_down


def test_every_nth_record_is_refused_counted_across_calls(faults: Faults) -> None:
    faults.put(Fault("kinesis", refuse_every=3, refuse_with="InternalFailure"))

    assert decide(faults, count=4).refused == {2: "InternalFailure"}
    assert decide(faults, count=4).refused == {1: "InternalFailure"}
    assert decide(faults, count=1).refused == {0: "InternalFailure"}


def test_with_a_name_only_its_records_count(faults: Faults) -> None:
    faults.put(Fault("iotsitewise", name="b", refuse_every=2))

    verdict = faults.decide("iotsitewise", "Put", ("a", "b"), ("b", "a", "a", "b", "b"))

    assert verdict.refused == {3: ""}


def test_records_of_a_call_that_fails_as_a_whole_do_not_count(faults: Faults) -> None:
    faults.put(Fault("kinesis", refuse_every=2))
    faults.put(Fault("*", throttle=True, for_calls=1))

    assert decide(faults).refused == {}
    assert decide(faults).refused == {}
    assert decide(faults).refused == {0: ""}


def test_it_ends_after_so_many_calls(faults: Faults) -> None:
    faults.put(Fault("kinesis", status=503, for_calls=2))

    assert decide(faults).failure is not None
    assert faults.describe() == [
        {"service": "kinesis", "status": 503, "forCalls": 2, "callsMet": 1}
    ]
    assert [decide(faults).failure is None for _ in range(2)] == [False, True]
    assert faults.describe() == []


def test_it_ends_after_so_long(faults: Faults, clock: ManualClock) -> None:
    faults.put(Fault("kinesis", status=503, for_millis=500))

    clock.now += 0.4
    assert decide(faults).failure is not None
    clock.now += 0.1
    assert is_well(decide(faults))
    assert faults.describe() == []


def test_those_that_meet_a_call_add_up_and_the_oldest_says_how_it_fails(faults: Faults) -> None:
    faults.put(Fault("*", delay_millis=10))
    faults.put(Fault("kinesis", status=500, delay_millis=5))
    faults.put(Fault("kinesis", name="a", throttle=True))

    verdict = decide(faults)

    assert verdict.delay_millis == 15
    assert verdict.failure is not None
    assert verdict.failure.status == 500


def test_a_fault_takes_the_place_of_the_one_for_the_same(faults: Faults) -> None:
    faults.put(Fault("kinesis", hang=True))
    (held_by,) = decide(faults).held_by
    assert faults.is_held(held_by)

    faults.put(Fault("kinesis", delay_millis=1))

    assert not faults.is_held(held_by)
    assert faults.describe() == [{"service": "kinesis", "delayMillis": 1, "callsMet": 0}]


def test_a_call_that_hangs_does_so_until_the_switch_is_turned_off(faults: Faults) -> None:
    faults.put(Fault("kinesis", hang=True, for_calls=1))
    (held_by,) = decide(faults).held_by

    assert is_well(decide(faults))
    assert faults.is_held(held_by)
    faults.clear("kinesis")
    assert not faults.is_held(held_by)


def test_a_call_that_hangs_does_so_for_as_long_as_the_fault_says(
    faults: Faults, clock: ManualClock
) -> None:
    faults.put(Fault("kinesis", hang=True, for_millis=500))
    (held_by,) = decide(faults).held_by

    clock.now += 0.5

    assert not faults.is_held(held_by)


def test_faults_of_one_service_or_name_are_cleared_without_the_others(faults: Faults) -> None:
    faults.put(Fault("kinesis", down=True))
    faults.put(Fault("kinesis", name="a", down=True))
    faults.put(Fault("s3", name="a", down=True))

    faults.clear("kinesis", "a")
    assert len(faults.describe()) == 2
    faults.clear(name="a")
    assert faults.describe() == [{"service": "kinesis", "down": True, "callsMet": 0}]
    faults.clear()
    assert faults.describe() == []
