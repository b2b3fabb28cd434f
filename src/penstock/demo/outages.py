"""An outage of the cloud now and then: its services answer that they cannot."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from http.client import HTTPException
from typing import NamedTuple

from penstock.sandbox.client import SandboxClient, SandboxError

_SERVICES = ("kinesis", "iotsitewise", "s3")
_STATUS = 503
# What a sandbox raises that is away, or goes away in the middle of an answer.
_AWAY = (OSError, HTTPException, SandboxError)


class Schedule(NamedTuple):
    # From the start of the demo to the first outage.
    first_seconds: float = 90.0
    # How long one lasts.
    seconds: float = 25.0
    # From the end of one to the next.
    pause_seconds: float = 215.0


USUAL = Schedule()


def run_outages(
    cloud: SandboxClient,
    is_over: threading.Event,
    tell: Callable[[str], None],
    schedule: Schedule = USUAL,
) -> None:
    """Cuts the cloud off again and again; it is never left so."""
    pause = schedule.first_seconds
    while not is_over.wait(pause):
        pause = schedule.pause_seconds
        try:
            # Somebody else is trying something out: that is not to be mixed up.
            if not cloud.faults():
                _cut_off(cloud, is_over, tell, schedule.seconds)
        except _AWAY:
            continue


def _cut_off(
    cloud: SandboxClient, is_over: threading.Event, tell: Callable[[str], None], seconds: float
) -> None:
    # It ends by itself as well, should this program be killed.
    millis = max(int(seconds * 1000), 1)
    try:
        for service in _SERVICES:
            cloud.set_fault(service, status=_STATUS, for_millis=millis)
        tell(f"the cloud is out of reach for {seconds:g} s")
        is_over.wait(seconds)
    finally:
        with contextlib.suppress(*_AWAY):
            _lift(cloud, millis)
    tell("the cloud is back")


def _lift(cloud: SandboxClient, millis: int) -> None:
    for fault in cloud.faults():
        service = fault.pop("service")
        fault.pop("callsMet")
        # Not what somebody has set in its place in the meantime.
        if service in _SERVICES and fault == {"status": _STATUS, "forMillis": millis}:
            cloud.set_fault(service, status=_STATUS, for_millis=1)
