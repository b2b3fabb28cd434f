from __future__ import annotations

from itertools import islice

from soak.plan import (
    BrokerEvent,
    SoakLimits,
    SystemEvent,
    plan_broker_rounds,
    plan_power_rounds,
    plan_system_steps,
)


def test_same_seed_gives_the_same_plan() -> None:
    for plan in (
        lambda seed: plan_broker_rounds(seed, has_small_disk=True),
        plan_power_rounds,
        lambda seed: plan_system_steps(seed, has_small_disk=True),
    ):
        assert list(islice(plan(7), 50)) == list(islice(plan(7), 50))
        assert list(islice(plan(7), 50)) != list(islice(plan(8), 50))


def test_first_rounds_have_each_event_once() -> None:
    rounds = islice(plan_broker_rounds(1, has_small_disk=True), len(BrokerEvent) - 1)
    assert {each.event for each in rounds} == set(BrokerEvent) - {BrokerEvent.NOTHING}
    steps = islice(plan_system_steps(1, has_small_disk=True), len(SystemEvent))
    assert {step.event for step in steps} == set(SystemEvent)


def test_no_full_disk_is_planned_without_a_small_disk() -> None:
    rounds = islice(plan_broker_rounds(1, has_small_disk=False), 200)
    assert not {BrokerEvent.FULL_DISK, BrokerEvent.FULL_DISK_KILL} & {it.event for it in rounds}
    steps = islice(plan_system_steps(1, has_small_disk=False), 200)
    assert SystemEvent.FULL_DISK not in {step.event for step in steps}


def test_number_of_rounds_overrides_the_deadline() -> None:
    assert list(SoakLimits(deadline=0.0, rounds=3).bound(range(10))) == [0, 1, 2]
    assert list(SoakLimits(deadline=0.0).bound(range(10))) == []
