"""The plan of a soak. The same seed gives the same rounds.

An arena runs rounds one after the other until the deadline, so a faster machine runs more of the
same rounds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import islice
from random import Random
from typing import NamedTuple, TypeVar

T = TypeVar("T")

_NEVER = threading.Event()


class SoakLimits(NamedTuple):
    """Limits of a soak: a deadline of the monotonic clock, or a number of rounds."""

    deadline: float
    # Rounds of each arena; None for no limit but the deadline.
    rounds: int | None = None
    max_load_seconds: float = 4.0
    # Set by a signal: the current round is the last.
    is_stopped: threading.Event = _NEVER

    @property
    def is_over(self) -> bool:
        is_late = self.rounds is None and time.monotonic() >= self.deadline
        return is_late or self.is_stopped.is_set()

    def bound(self, planned: Iterable[T]) -> Iterator[T]:
        """Yields planned rounds until a limit is reached."""
        for each in islice(planned, self.rounds):
            if self.is_over:
                return
            yield each


class BrokerEvent(StrEnum):
    """The fault at the end of a round of the broker arena."""

    KILL = "kill -9 of the broker"
    TERMINATE = "SIGTERM to the broker"
    DAMAGE = "damaged files"
    CATALOG_DAMAGE = "damaged catalog"
    FULL_DISK = "full disk"
    FULL_DISK_KILL = "full disk and kill -9"
    NOTHING = "no fault"


_BROKER_WEIGHTS = {
    BrokerEvent.KILL: 6,
    BrokerEvent.TERMINATE: 2,
    BrokerEvent.DAMAGE: 3,
    BrokerEvent.CATALOG_DAMAGE: 1,
    BrokerEvent.FULL_DISK: 2,
    BrokerEvent.FULL_DISK_KILL: 1,
    BrokerEvent.NOTHING: 1,
}


class HostileAction(StrEnum):
    """An action of a hostile client on its connection."""

    GARBAGE = "random bytes"
    HALF_OPEN = "half-open handshake"
    FUZZED_FRAMES = "fuzzed frames"
    MUTATED_APPENDS = "mutated appends"
    LARGE_FRAME = "large frame that never ends"
    SLOW_WRITER = "request byte by byte"
    NO_READER = "responses that are not read"
    ABRUPT_CLOSE = "reset in the middle of a request"
    HALF_OPEN_HTTP = "half-open HTTP requests"


class BrokerRound(NamedTuple):
    number: int
    load_seconds: float
    event: BrokerEvent
    hostile: tuple[HostileAction, ...]
    # For random choices during the round.
    seed: int


def plan_broker_rounds(
    seed: int, *, has_small_disk: bool, max_load_seconds: float = 4.0
) -> Iterator[BrokerRound]:
    """Yields rounds. The first have each event once; later events are random."""
    random = Random(f"{seed} broker")
    events = [event for event in BrokerEvent if has_small_disk or "full disk" not in event]
    first = [event for event in events if event is not BrokerEvent.NOTHING]
    random.shuffle(first)
    weights = [_BROKER_WEIGHTS[event] for event in events]
    number = 0
    while True:
        event = first[number] if number < len(first) else random.choices(events, weights)[0]
        hostile = tuple(random.choices(list(HostileAction), k=random.randint(2, 12)))
        yield BrokerRound(
            number,
            round(random.uniform(0.1, 1.0) * max_load_seconds, 2),
            event,
            hostile,
            random.getrandbits(32),
        )
        number += 1


class PowerRound(NamedTuple):
    number: int
    load_seconds: float
    seed: int


def plan_power_rounds(seed: int, max_load_seconds: float = 4.0) -> Iterator[PowerRound]:
    random = Random(f"{seed} power")
    number = 0
    while True:
        load_seconds = round(random.uniform(0.05, 0.8) * max_load_seconds, 2)
        yield PowerRound(number, load_seconds, random.getrandbits(32))
        number += 1


class SystemEvent(StrEnum):
    """A fault of the system arena, during load."""

    KILL_BROKER = "kill -9 of the broker under up"
    TERMINATE_BROKER = "SIGTERM to the broker under up"
    KILL_PIPELINE = "kill -9 of the pipeline"
    TERMINATE_PIPELINE = "SIGTERM to the pipeline"
    KILL_JAVA = "kill -9 of Java"
    KILL_WORKER = "kill -9 of a Python worker"
    KILL_UP = "kill -9 of up"
    TERMINATE_UP = "SIGTERM to up"
    KILL_SANDBOX = "kill -9 of the sandbox"
    OUTAGE = "outage of a destination"
    FULL_DISK = "full disk under exports"
    PAUSE_EXPORTS = "exports paused and resumed"


_SYSTEM_WEIGHTS = {
    SystemEvent.KILL_BROKER: 3,
    SystemEvent.TERMINATE_BROKER: 1,
    SystemEvent.KILL_PIPELINE: 2,
    SystemEvent.TERMINATE_PIPELINE: 1,
    SystemEvent.KILL_JAVA: 2,
    SystemEvent.KILL_WORKER: 4,
    SystemEvent.KILL_UP: 1,
    SystemEvent.TERMINATE_UP: 1,
    SystemEvent.KILL_SANDBOX: 1,
    SystemEvent.OUTAGE: 10,
    SystemEvent.FULL_DISK: 2,
    SystemEvent.PAUSE_EXPORTS: 2,
}

# Faults of a destination, as fields of the sandbox's faults.
OUTAGES: tuple[Mapping[str, object], ...] = (
    {"down": True},
    {"throttle": True},
    {"status": 503},
    {"status": 500},
    {"hang": True},
    {"delayMillis": 400},
    {"refuseEvery": 7},
)
OUTAGE_SERVICES = ("kinesis", "http", "s3", "iotsitewise", "*")


class SystemStep(NamedTuple):
    number: int
    # Since the previous step.
    pause_seconds: float
    event: SystemEvent
    service: str
    outage: Mapping[str, object]
    outage_seconds: float


def plan_system_steps(seed: int, *, has_small_disk: bool) -> Iterator[SystemStep]:
    """Yields steps. The first have each event once; later events are random."""
    random = Random(f"{seed} system")
    events = [it for it in SystemEvent if has_small_disk or it is not SystemEvent.FULL_DISK]
    first = [*events]
    random.shuffle(first)
    weights = [_SYSTEM_WEIGHTS[event] for event in events]
    number = 0
    while True:
        event = first[number] if number < len(first) else random.choices(events, weights)[0]
        yield SystemStep(
            number,
            round(random.uniform(4, 14), 1),
            event,
            random.choice(OUTAGE_SERVICES),
            random.choice(OUTAGES),
            round(random.uniform(1, 8), 1),
        )
        number += 1
