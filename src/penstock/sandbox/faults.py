"""Switches that make a service fail, and what they decide for a call."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

SERVICES = ("kinesis", "s3", "iotsitewise", "iotanalytics", "http")

_Positive = Annotated[int, Meta(ge=1)]
_COUNT = "a whole number, 1 or more"
_SWITCH = "true or false"

# What each field of a fault may be, for those who got it wrong.
ALLOWED = {
    "service": f"one of {', '.join(SERVICES)}, or * for all",
    "name": "the name of a stream, bucket, channel, property alias or HTTP sink",
    "operation": "the name of an operation, such as PutRecords",
    "refuseEvery": _COUNT,
    "refuseWith": "an error code, such as InternalFailure",
    "throttle": _SWITCH,
    "status": "an HTTP status from 400 to 599",
    "code": "an error code, such as AccessDeniedException",
    "retryAfter": "a whole number of seconds, 0 or more",
    "hang": _SWITCH,
    "down": _SWITCH,
    "delayMillis": _COUNT,
    "forMillis": _COUNT,
    "forCalls": _COUNT,
}


class Fault(
    msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """What goes wrong, and for which calls; without a filter, for all of the service."""

    service: Literal["*", "kinesis", "s3", "iotsitewise", "iotanalytics", "http"]
    name: str | None = None
    operation: str | None = None
    refuse_every: _Positive | None = None
    refuse_with: str | None = None
    throttle: bool = False
    status: Annotated[int, Meta(ge=400, le=599)] | None = None
    code: str | None = None
    retry_after: Annotated[int, Meta(ge=0)] | None = None
    hang: bool = False
    down: bool = False
    delay_millis: _Positive | None = None
    for_millis: _Positive | None = None
    for_calls: _Positive | None = None

    @property
    def place(self) -> tuple[str, str | None, str | None]:
        """There is one fault at most for each of these."""
        return self.service, self.name, self.operation

    def meets(self, service: str, operation: str, names: Sequence[str]) -> bool:
        return (
            self.service in ("*", service)
            and self.operation in (None, operation)
            and (self.name is None or self.name in names)
        )


class FaultError(ValueError):
    """A fault that is none, in one line that names the field and what it may be."""


def read_fault(data: bytes) -> Fault:
    try:
        fault = msgspec.json.decode(data, type=Fault)
    except msgspec.ValidationError as error:
        raise FaultError(_explain(str(error))) from None
    except msgspec.DecodeError as error:
        raise FaultError(f"a fault is a JSON object: {error}") from None
    _check(fault)
    return fault


def _explain(problem: str) -> str:
    if field := re.search(r"\$\.(\w+)", problem):
        return f"{field[1]}: has to be {ALLOWED[field[1]]}"
    if field := re.search(r"unknown field `(.*)`", problem):
        return f"{field[1]}: there is no such field, but {', '.join(ALLOWED)}"
    if field := re.search(r"missing required field `(.*)`", problem):
        return f"{field[1]}: is missing; it has to be {ALLOWED[field[1]]}"
    return f"a fault is a JSON object: {problem}"


def _check(fault: Fault) -> None:
    effects = {
        "refuseEvery": fault.refuse_every,
        "throttle": fault.throttle,
        "status": fault.status,
        "hang": fault.hang,
        "down": fault.down,
        "delayMillis": fault.delay_millis,
    }
    if not any(effects.values()):
        raise FaultError(f"nothing would go wrong: set one of {', '.join(effects)}")
    if fault.throttle and fault.status is not None:
        raise FaultError("throttle: has a status of its own; leave out one of throttle, status")
    if fault.refuse_with is not None and fault.refuse_every is None:
        raise FaultError("refuseWith: goes with refuseEvery only")
    for field, value in (("code", fault.code), ("retryAfter", fault.retry_after)):
        if value is not None and not fault.throttle and fault.status is None:
            raise FaultError(f"{field}: goes with status or throttle only")


class Switch:
    """A fault that is on. `released` is set once it holds nobody any more."""

    def __init__(self, fault: Fault, now: float) -> None:
        self.fault = fault
        self.released = threading.Event()
        self._calls_met = 0
        self._ends_at = None if fault.for_millis is None else now + fault.for_millis / 1000
        self._records_seen = 0

    def is_over(self, now: float) -> bool:
        return self._ends_at is not None and now >= self._ends_at

    @property
    def is_spent(self) -> bool:
        """Whether it meets no further call; those that hang in it stay until it is released."""
        return self._calls_met == self.fault.for_calls

    def meet_call(self) -> None:
        self._calls_met += 1

    def refuse(self, records: Sequence[str]) -> dict[int, str]:
        """The places of those that are refused. It counts on from call to call."""
        refused = {}
        for place, name in enumerate(records):
            if self.fault.name in (None, name):
                self._records_seen += 1
                assert self.fault.refuse_every is not None
                if self._records_seen % self.fault.refuse_every == 0:
                    refused[place] = self.fault.refuse_with or ""
        return refused

    def describe(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self.fault)
        return plain | {"callsMet": self._calls_met}


class Verdict(NamedTuple):
    """What becomes of a call, in this order."""

    delay_millis: int = 0
    # It waits until these are released.
    held_by: tuple[Switch, ...] = ()
    is_down: bool = False
    # The whole of it fails with what this says.
    failure: Fault | None = None
    # By place, the code that a record is refused with; an empty one is the service's own.
    refused: dict[int, str] = {}  # noqa: RUF012 - nobody changes it


class Faults:
    """The switches of a sandbox, set and looked at by many threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._switches: dict[tuple[str, str | None, str | None], Switch] = {}
        self._lock = threading.Lock()

    def put(self, fault: Fault) -> None:
        """Turns it on, in place of the one with the same service, name and operation."""
        with self._lock:
            before = self._switches.pop(fault.place, None)
            self._switches[fault.place] = Switch(fault, self._clock())
        if before is not None:
            before.released.set()

    def clear(self, service: str | None = None, name: str | None = None) -> None:
        """Turns off all of them, or those of a service, or those for a name."""
        with self._lock:
            off = [
                switch
                for switch in self._switches.values()
                if service in (None, switch.fault.service) and name in (None, switch.fault.name)
            ]
            for switch in off:
                del self._switches[switch.fault.place]
        for switch in off:
            switch.released.set()

    def describe(self) -> list[dict[str, Any]]:
        with self._lock:
            self._end_those_that_are_over()
            return [switch.describe() for switch in self._switches.values()]

    def is_held(self, switch: Switch) -> bool:
        with self._lock:
            self._end_those_that_are_over()
        return not switch.released.is_set()

    def decide(
        self, service: str, operation: str, names: Sequence[str], records: Sequence[str]
    ) -> Verdict:
        """What becomes of a call. All switches that meet it take part, the oldest first."""
        with self._lock:
            self._end_those_that_are_over()
            meeting = [
                switch
                for switch in self._switches.values()
                if not switch.is_spent and switch.fault.meets(service, operation, names)
            ]
            for switch in meeting:
                switch.meet_call()
            faults = [switch.fault for switch in meeting]
            failures = [fault for fault in faults if fault.throttle or fault.status is not None]
            is_down = any(fault.down for fault in faults)
            refused: dict[int, str] = {}
            if not failures and not is_down:
                for switch in meeting:
                    if switch.fault.refuse_every is not None:
                        refused = switch.refuse(records) | refused
            self._forget_spent()
        return Verdict(
            sum(fault.delay_millis or 0 for fault in faults),
            tuple(switch for switch in meeting if switch.fault.hang),
            is_down,
            failures[0] if failures else None,
            refused,
        )

    def _end_those_that_are_over(self) -> None:
        now = self._clock()
        for place, switch in list(self._switches.items()):
            if switch.is_over(now):
                del self._switches[place]
                switch.released.set()

    def _forget_spent(self) -> None:
        for place, switch in list(self._switches.items()):
            # One with calls that hang in it is kept, so that it can be turned off.
            if switch.is_spent and not switch.fault.hang:
                del self._switches[place]
