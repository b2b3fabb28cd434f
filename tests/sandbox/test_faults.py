"""Validation of faults, and their effects on calls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.sandbox.faults import ALLOWED, Fault, FaultEffects, FaultError, Faults, read_fault


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


def decide(
    faults: Faults, name: str = "a", count: int = 1, service: str = "kinesis"
) -> FaultEffects:
    return faults.decide(service, "PutRecords", (name,), (name,) * count)


def has_no_effects(effects: FaultEffects) -> bool:
    return effects == FaultEffects()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({}, "service: is missing; it must be one of kinesis, s3"),
        ({"service": "sqs"}, "service: must be one of kinesis, s3"),
        ({"service": "s3", "refuseEvery": 0}, "refuseEvery: must be a whole number, 1 or more"),
        ({"service": "s3", "throttle": "yes"}, "throttle: must be true or false"),
        ({"service": "s3", "status": 200}, "status: must be an HTTP status from 400 to 599"),
        ({"service": "s3", "hangs": True}, "hangs: unknown field; allowed: service, name"),
        ({"service": "s3"}, "set one of refuseEvery, throttle, status, hang, down, delayMillis"),
        (
            {"service": "s3", "throttle": True, "status": 503},
            "throttle: cannot be combined with status",
        ),
        ({"service": "s3", "hang": True, "refuseWith": "X"}, "refuseWith: needs refuseEvery"),
        ({"service": "s3", "hang": True, "code": "X"}, "code: needs status or throttle"),
        ({"service": "s3", "down": True, "retryAfter": 1}, "retryAfter: needs status"),
        ([], "a fault must be a JSON object"),
    ],
)
def test_invalid_fault_is_rejected_with_field_and_allowed_values(fault: Any, message: str) -> None:
    with pytest.raises(FaultError) as raised:
        read_fault(msgspec.json.encode(fault))

    assert message in str(raised.value)


def test_malformed_json_is_rejected() -> None:
    with pytest.raises(FaultError, match="a fault must be a JSON object"):
        read_fault(b"{")


def test_every_field_has_its_allowed_values() -> None:
    assert list(ALLOWED) == [field.encode_name for field in msgspec.structs.fields(Fault)]


def test_documentation_has_all_fields_and_valid_examples() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text()

    examples = re.findall(r"faults -d '(.*?)'", page, re.DOTALL)
    assert len(examples) > 4
    for example in examples:
        read_fault(example.encode())
    assert all(f"| `{field}" in page for field in ALLOWED)


def test_call_without_faults_has_no_effects(faults: Faults) -> None:
    assert has_no_effects(decide(faults))


def test_fault_matches_service_name_and_operation(faults: Faults) -> None:
    faults.put(Fault("kinesis", name="a", operation="PutRecords", down=True))

    assert decide(faults).is_down
    assert has_no_effects(decide(faults, name="b"))
    assert has_no_effects(decide(faults, service="s3"))
    assert has_no_effects(faults.decide("kinesis", "GetRecords", ("a",), ()))


def test_star_matches_all_services(faults: Faults) -> None:
    faults.put(Fault("*", down=True))

    assert decide(faults, service="iotsitewise").is_down


def test_every_nth_record_across_calls_is_refused(faults: Faults) -> None:
    faults.put(Fault("kinesis", refuse_every=3, refuse_with="InternalFailure"))

    assert decide(faults, count=4).refused == {2: "InternalFailure"}
    assert decide(faults, count=4).refused == {1: "InternalFailure"}
    assert decide(faults, count=1).refused == {0: "InternalFailure"}


def test_fault_with_a_name_counts_only_its_records(faults: Faults) -> None:
    faults.put(Fault("iotsitewise", name="b", refuse_every=2))

    effects = faults.decide("iotsitewise", "Put", ("a", "b"), ("b", "a", "a", "b", "b"))

    assert effects.refused == {3: ""}


def test_records_of_a_failed_call_do_not_count(faults: Faults) -> None:
    faults.put(Fault("kinesis", refuse_every=2))
    faults.put(Fault("*", throttle=True, for_calls=1))

    assert decide(faults).refused == {}
    assert decide(faults).refused == {}
    assert decide(faults).refused == {0: ""}


def test_fault_ends_after_for_calls(faults: Faults) -> None:
    faults.put(Fault("kinesis", status=503, for_calls=2))

    assert decide(faults).failure is not None
    assert faults.describe() == [
        {"service": "kinesis", "status": 503, "forCalls": 2, "callsMet": 1}
    ]
    assert [decide(faults).failure is None for _ in range(2)] == [False, True]
    assert faults.describe() == []


def test_fault_ends_after_for_millis(faults: Faults, clock: ManualClock) -> None:
    faults.put(Fault("kinesis", status=503, for_millis=500))

    clock.now += 0.4
    assert decide(faults).failure is not None
    clock.now += 0.1
    assert has_no_effects(decide(faults))
    assert faults.describe() == []


def test_matching_faults_add_up_and_the_oldest_failure_wins(faults: Faults) -> None:
    faults.put(Fault("*", delay_millis=10))
    faults.put(Fault("kinesis", status=500, delay_millis=5))
    faults.put(Fault("kinesis", name="a", throttle=True))

    effects = decide(faults)

    assert effects.delay_millis == 15
    assert effects.failure is not None
    assert effects.failure.status == 500


def test_fault_replaces_the_one_with_the_same_key(faults: Faults) -> None:
    faults.put(Fault("kinesis", hang=True))
    (held_by,) = decide(faults).held_by
    assert faults.is_held(held_by)

    faults.put(Fault("kinesis", delay_millis=1))

    assert not faults.is_held(held_by)
    assert faults.describe() == [{"service": "kinesis", "delayMillis": 1, "callsMet": 0}]


def test_call_hangs_until_the_fault_is_cleared(faults: Faults) -> None:
    faults.put(Fault("kinesis", hang=True, for_calls=1))
    (held_by,) = decide(faults).held_by

    assert has_no_effects(decide(faults))
    assert faults.is_held(held_by)
    faults.clear("kinesis")
    assert not faults.is_held(held_by)


def test_call_hangs_until_the_fault_expires(faults: Faults, clock: ManualClock) -> None:
    faults.put(Fault("kinesis", hang=True, for_millis=500))
    (held_by,) = decide(faults).held_by

    clock.now += 0.5

    assert not faults.is_held(held_by)


def test_clear_selects_by_service_and_name(faults: Faults) -> None:
    faults.put(Fault("kinesis", down=True))
    faults.put(Fault("kinesis", name="a", down=True))
    faults.put(Fault("s3", name="a", down=True))

    faults.clear("kinesis", "a")
    assert len(faults.describe()) == 2
    faults.clear(name="a")
    assert faults.describe() == [{"service": "kinesis", "down": True, "callsMet": 0}]
    faults.clear()
    assert faults.describe() == []
