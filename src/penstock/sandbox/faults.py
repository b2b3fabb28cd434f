"""Faults of services, and their effects on calls."""

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
_FLAG = "true or false"

# The allowed values of each field, for error messages.
ALLOWED = {
    "service": f"one of {', '.join(SERVICES)}, or * for all",
    "name": "the name of a stream, bucket, channel, property alias or HTTP sink",
    "operation": "the name of an operation, such as PutRecords",
    "refuseEvery": _COUNT,
    "refuseWith": "an error code, such as InternalFailure",
    "throttle": _FLAG,
    "status": "an HTTP status from 400 to 599",
    "code": "an error code, such as AccessDeniedException",
    "retryAfter": "a whole number of seconds, 0 or more",
    "hang": _FLAG,
    "down": _FLAG,
    "delayMillis": _COUNT,
    "forMillis": _COUNT,
    "forCalls": _COUNT,
}


class Fault(
    msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """A fault, and a filter for the calls that it affects; by default all calls of the service."""

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
    def key(self) -> tuple[str, str | None, str | None]:
        """Identifies a fault: a new fault replaces the active fault with the same key."""
        return self.service, self.name, self.operation

    def matches(self, service: str, operation: str, names: Sequence[str]) -> bool:
        return (
            self.service in ("*", service)
            and self.operation in (None, operation)
            and (self.name is None or self.name in names)
        )


class FaultError(ValueError):
    """An invalid fault. The message is one line that names the field and its allowed values."""


def read_fault(data: bytes) -> Fault:
    try:
        fault = msgspec.json.decode(data, type=Fault)
    except msgspec.ValidationError as error:
        raise FaultError(_explain(str(error))) from None
    except msgspec.DecodeError as error:
        raise FaultError(f"a fault must be a JSON object: {error}") from None
    _check(fault)
    return fault


def _explain(problem: str) -> str:
    if field := re.search(r"\$\.(\w+)", problem):
        return f"{field[1]}: must be {ALLOWED[field[1]]}"
    if field := re.search(r"unknown field `(.*)`", problem):
        return f"{field[1]}: unknown field; allowed: {', '.join(ALLOWED)}"
    if field := re.search(r"missing required field `(.*)`", problem):
        return f"{field[1]}: is missing; it must be {ALLOWED[field[1]]}"
    return f"a fault must be a JSON object: {problem}"


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
        raise FaultError(f"the fault has no effect: set one of {', '.join(effects)}")
    if fault.throttle and fault.status is not None:
        raise FaultError("throttle: cannot be combined with status")
    if fault.refuse_with is not None and fault.refuse_every is None:
        raise FaultError("refuseWith: needs refuseEvery")
    for field, value in (("code", fault.code), ("retryAfter", fault.retry_after)):
        if value is not None and not fault.throttle and fault.status is None:
            raise FaultError(f"{field}: needs status or throttle")


class ActiveFault:
    """A fault that is turned on. `released` is set when hanging calls may continue."""

    def __init__(self, fault: Fault, now: float) -> None:
        self.fault = fault
        self.released = threading.Event()
        self._calls_met = 0
        self._expires_at = None if fault.for_millis is None else now + fault.for_millis / 1000
        self._records_seen = 0

    def is_expired(self, now: float) -> bool:
        return self._expires_at is not None and now >= self._expires_at

    @property
    def is_exhausted(self) -> bool:
        """Whether the fault affects no new call. Hanging calls stay until it is released."""
        return self._calls_met == self.fault.for_calls

    def count_call(self) -> None:
        self._calls_met += 1

    def refuse(self, records: Sequence[str]) -> dict[int, str]:
        """Returns the error codes of refused records by index. Records are counted across calls."""
        refused = {}
        for index, name in enumerate(records):
            if self.fault.name in (None, name):
                self._records_seen += 1
                assert self.fault.refuse_every is not None
                if self._records_seen % self.fault.refuse_every == 0:
                    refused[index] = self.fault.refuse_with or ""
        return refused

    def describe(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self.fault)
        return plain | {"callsMet": self._calls_met}


class FaultEffects(NamedTuple):
    """The effects of all active faults on a call, in the order of their application."""

    delay_millis: int = 0
    # The call hangs until these are released.
    held_by: tuple[ActiveFault, ...] = ()
    is_down: bool = False
    # The whole call fails with the status and code of this fault.
    failure: Fault | None = None
    # Error codes of refused records, by index. An empty code means the default of the service.
    refused: dict[int, str] = {}  # noqa: RUF012 - never modified


class Faults:
    """The active faults of a sandbox. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._active: dict[tuple[str, str | None, str | None], ActiveFault] = {}
        self._lock = threading.Lock()

    def put(self, fault: Fault) -> None:
        """Turns a fault on. It replaces a fault with the same service, name and operation."""
        with self._lock:
            replaced = self._active.pop(fault.key, None)
            self._active[fault.key] = ActiveFault(fault, self._clock())
        if replaced is not None:
            replaced.released.set()

    def clear(self, service: str | None = None, name: str | None = None) -> None:
        """Turns off all faults, or the faults of a service, of a name, or of both."""
        with self._lock:
            off = [
                active
                for active in self._active.values()
                if service in (None, active.fault.service) and name in (None, active.fault.name)
            ]
            for active in off:
                del self._active[active.fault.key]
        for active in off:
            active.released.set()

    def describe(self) -> list[dict[str, Any]]:
        with self._lock:
            self._remove_expired()
            return [active.describe() for active in self._active.values()]

    def is_held(self, active: ActiveFault) -> bool:
        with self._lock:
            self._remove_expired()
        return not active.released.is_set()

    def decide(
        self, service: str, operation: str, names: Sequence[str], records: Sequence[str]
    ) -> FaultEffects:
        """Returns the effects on a call of all faults that match it, oldest first."""
        with self._lock:
            self._remove_expired()
            matching = [
                active
                for active in self._active.values()
                if not active.is_exhausted and active.fault.matches(service, operation, names)
            ]
            for active in matching:
                active.count_call()
            faults = [active.fault for active in matching]
            failures = [fault for fault in faults if fault.throttle or fault.status is not None]
            is_down = any(fault.down for fault in faults)
            refused: dict[int, str] = {}
            if not failures and not is_down:
                for active in matching:
                    if active.fault.refuse_every is not None:
                        refused = active.refuse(records) | refused
            self._remove_exhausted()
        return FaultEffects(
            sum(fault.delay_millis or 0 for fault in faults),
            tuple(active for active in matching if active.fault.hang),
            is_down,
            failures[0] if failures else None,
            refused,
        )

    def _remove_expired(self) -> None:
        now = self._clock()
        for key, active in list(self._active.items()):
            if active.is_expired(now):
                del self._active[key]
                active.released.set()

    def _remove_exhausted(self) -> None:
        for key, active in list(self._active.items()):
            # Calls may hang until the fault is turned off.
            if active.is_exhausted and not active.fault.hang:
                del self._active[key]
