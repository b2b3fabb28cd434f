"""Outages of the cloud."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.demo.outages import OutageSchedule, run_outages
from penstock.sandbox.local_sandbox import Sandbox
from tests.demo.background import Lines, in_background
from tests.support import TIMEOUT_S, wait_until

FOR_EVER = 1000.0
BEGIN = "the cloud is unavailable for"
END = "the cloud is available again"


@pytest.fixture
def cloud() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def lines() -> Lines:
    return queue.SimpleQueue()


def outages(
    cloud: Sandbox, lines: Lines, schedule: OutageSchedule
) -> Callable[[threading.Event], None]:
    return lambda stopping: run_outages(cloud, stopping, lines.put, schedule)


def test_outages_repeat_and_are_reported(cloud: Sandbox, lines: Lines) -> None:
    with in_background(outages(cloud, lines, OutageSchedule(0.01, 0.05, 0.01))):
        reported = [lines.get(timeout=TIMEOUT_S) for _ in range(4)]

    assert reported == [f"{BEGIN} 0.05 s", END] * 2
    wait_until(lambda: not cloud.faults())


def test_kinesis_sitewise_and_s3_fail_until_the_end(cloud: Sandbox, lines: Lines) -> None:
    with in_background(outages(cloud, lines, OutageSchedule(0, FOR_EVER, 0))):
        assert lines.get(timeout=TIMEOUT_S) == f"{BEGIN} 1000 s"
        faults = {fault["service"]: fault["status"] for fault in cloud.faults()}

    assert faults == dict.fromkeys(("kinesis", "iotsitewise", "s3"), 503)
    wait_until(lambda: not cloud.faults())
    assert lines.get(timeout=TIMEOUT_S) == END


def test_faults_of_the_user_are_kept(cloud: Sandbox, lines: Lines) -> None:
    cloud.set_fault("kinesis", throttle=True)
    with in_background(outages(cloud, lines, OutageSchedule(0, FOR_EVER, 0.01))):
        cloud.set_fault("kinesis", name="own", refuse_every=2)
        assert lines.empty()
        cloud.clear_faults()
        lines.get(timeout=TIMEOUT_S)
        cloud.set_fault("kinesis", throttle=True)

    wait_until(lambda: len(cloud.faults()) == 1)
    assert cloud.faults() == [{"service": "kinesis", "throttle": True, "callsMet": 0}]


def test_outages_continue_after_a_restart_of_the_cloud(cloud: Sandbox, lines: Lines) -> None:
    with in_background(outages(cloud, lines, OutageSchedule(0, 0.02, 0.01))):
        lines.get(timeout=TIMEOUT_S)
        cloud.stop()
        cloud.start()
        while lines.get(timeout=TIMEOUT_S) != END:
            pass
        lines.get(timeout=TIMEOUT_S)

    wait_until(lambda: not cloud.faults())
