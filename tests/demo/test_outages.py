"""Outages of the cloud: they come, they go, and none is left behind."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.demo.outages import Schedule, run_outages
from penstock.sandbox.local_sandbox import Sandbox
from tests.demo.beside import Lines, beside
from tests.support import TIMEOUT_S, wait_until

FOR_EVER = 1000.0
BEGIN = "the cloud is out of reach for"
END = "the cloud is back"


@pytest.fixture
def cloud() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def told() -> Lines:
    return queue.SimpleQueue()


def outages(cloud: Sandbox, told: Lines, schedule: Schedule) -> Callable[[threading.Event], None]:
    return lambda is_over: run_outages(cloud, is_over, told.put, schedule)


def test_one_comes_after_the_other_and_each_is_told(cloud: Sandbox, told: Lines) -> None:
    with beside(outages(cloud, told, Schedule(0.01, 0.05, 0.01))):
        lines = [told.get(timeout=TIMEOUT_S) for _ in range(4)]

    assert lines == [f"{BEGIN} 0.05 s", END] * 2
    wait_until(lambda: not cloud.faults())


def test_kinesis_sitewise_and_s3_fail_until_it_is_over(cloud: Sandbox, told: Lines) -> None:
    with beside(outages(cloud, told, Schedule(0, FOR_EVER, 0))):
        assert told.get(timeout=TIMEOUT_S) == f"{BEGIN} 1000 s"
        faults = {fault["service"]: fault["status"] for fault in cloud.faults()}

    assert faults == dict.fromkeys(("kinesis", "iotsitewise", "s3"), 503)
    wait_until(lambda: not cloud.faults())
    assert told.get(timeout=TIMEOUT_S) == END


def test_faults_of_somebody_else_are_left_alone(cloud: Sandbox, told: Lines) -> None:
    cloud.set_fault("kinesis", throttle=True)
    with beside(outages(cloud, told, Schedule(0, FOR_EVER, 0.01))):
        cloud.set_fault("kinesis", name="own", refuse_every=2)
        assert told.empty()
        cloud.clear_faults()
        told.get(timeout=TIMEOUT_S)
        cloud.set_fault("kinesis", throttle=True)

    wait_until(lambda: len(cloud.faults()) == 1)
    assert cloud.faults() == [{"service": "kinesis", "throttle": True, "callsMet": 0}]


def test_a_cloud_that_is_away_is_waited_for(cloud: Sandbox, told: Lines) -> None:
    with beside(outages(cloud, told, Schedule(0, 0.02, 0.01))):
        told.get(timeout=TIMEOUT_S)
        cloud.stop()
        cloud.start()
        while told.get(timeout=TIMEOUT_S) != END:
            pass
        told.get(timeout=TIMEOUT_S)

    wait_until(lambda: not cloud.faults())
