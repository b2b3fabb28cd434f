"""Outages of the cloud at intervals: its services answer with errors."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from http.client import HTTPException
from typing import NamedTuple

from penstock.sandbox.client import SandboxClient, SandboxError

_SERVICES = ("kinesis", "iotsitewise", "s3")
_STATUS = 503
# Errors of a sandbox that is unavailable, or stops within a response.
_UNAVAILABLE_ERRORS = (OSError, HTTPException, SandboxError)


class OutageSchedule(NamedTuple):
    # From the start of the demo to the first outage.
    first_seconds: float = 90.0
    # The duration of an outage.
    seconds: float = 25.0
    # From the end of an outage to the next.
    pause_seconds: float = 215.0


DEFAULT_SCHEDULE = OutageSchedule()


def run_outages(
    cloud: SandboxClient,
    stopping: threading.Event,
    report: Callable[[str], None],
    schedule: OutageSchedule = DEFAULT_SCHEDULE,
) -> None:
    """Starts outages until the event is set, and ends the last one."""
    pause = schedule.first_seconds
    while not stopping.wait(pause):
        pause = schedule.pause_seconds
        try:
            # Do not interfere with faults that the user has set.
            if not cloud.faults():
                _run_outage(cloud, stopping, report, schedule.seconds)
        except _UNAVAILABLE_ERRORS:
            continue


def _run_outage(
    cloud: SandboxClient, stopping: threading.Event, report: Callable[[str], None], seconds: float
) -> None:
    # With an expiry, in case this program is killed.
    millis = max(int(seconds * 1000), 1)
    try:
        for service in _SERVICES:
            cloud.set_fault(service, status=_STATUS, for_millis=millis)
        report(f"the cloud is unavailable for {seconds:g} s")
        stopping.wait(seconds)
    finally:
        with contextlib.suppress(*_UNAVAILABLE_ERRORS):
            _end_outage(cloud, millis)
    report("the cloud is available again")


def _end_outage(cloud: SandboxClient, millis: int) -> None:
    for fault in cloud.faults():
        service = fault.pop("service")
        fault.pop("callsMet")
        # Keep faults that the user has set in the meantime.
        if service in _SERVICES and fault == {"status": _STATUS, "forMillis": millis}:
            cloud.set_fault(service, status=_STATUS, for_millis=1)
