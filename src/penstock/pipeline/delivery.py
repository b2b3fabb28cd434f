"""The delivery of a slice of messages, in order: the part that all destinations share.

It decides which messages are retried and when. If a call is refused, it finds the message that
caused that.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Container, Sequence

import msgspec

from penstock.pipeline.destinations.destination import (
    Answer,
    Call,
    Destination,
    Messages,
    RefusedError,
    UnavailableError,
)
from penstock.pipeline.settlements import Delivery, Settlements
from penstock.pipeline.stopping import StopSignal

logger = logging.getLogger(__name__)

# The maximum number of seconds before the first retry, doubled with each failure in a row.
_FIRST_PAUSE = 0.05
# After so many calls in a row with failed messages, the broker decides when to retry.
_MAX_FAILURES = 6
# A delivery ends when it has skipped so many messages: a report has to name all of them.
MAX_SKIPPED = 1000


class _Part:
    """Messages to send: all of a delivery, or those of a call that failed."""

    def __init__(self, messages: Messages, places: Sequence[int]) -> None:
        self.messages = messages
        # Their places among all messages of the delivery.
        self.places = places
        self.next = 0
        # A call that ended here was refused, because of a message that is not sent yet.
        self._suspect_stop = 0
        self._limit = len(places)

    @property
    def limit(self) -> int:
        suspects = self._suspect_stop - self.next
        return (suspects + 1) // 2 if suspects > 0 else self._limit

    def suspect(self, call: Call) -> None:
        self._suspect_stop = call.stop
        self._limit = 1

    def advance(self, call: Call) -> None:
        self.next = call.stop
        # Where one message was refused there may be more: calls grow slowly.
        if self.next >= self._suspect_stop:
            self._limit = min(2 * self._limit, len(self.places))

    def pick(self, call: Call, numbers: Container[int]) -> _Part:
        """The messages of a call that have these numbers."""
        sent = range(call.start, call.stop)
        places = [place for place in sent if self.messages.numbers[place] in numbers]
        return _Part(self.messages.pick(places), [self.places[place] for place in places])


class MessageDelivery:
    """A delivery of the slice [messages.first, end). One thread runs it, any may watch it."""

    def __init__(
        self,
        destination: Destination,
        messages: Messages,
        end: int,
        stop: StopSignal,
        # Called when messages have arrived.
        on_progress: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._destination = destination
        self._messages = messages
        self._stop = stop
        self._on_progress = on_progress
        self._clock = clock
        self._error = ""
        self._retry_after = 0.0
        self._settlements = Settlements(messages, end)
        self._sent_bytes = 0
        # The earliest time of the next call.
        self._next_call = clock()
        # All results of a call become visible at the same time.
        self._lock = threading.Lock()

    def run(self) -> None:
        try:
            self._error = self._run()
        except UnavailableError as unavailable:
            self._error = str(unavailable)
            self._retry_after = unavailable.retry_after or 0.0
        except Exception as unexpected:
            # The status of the export shows it.
            self._error = f"{type(unexpected).__name__}: {unexpected}"
            logger.exception("the delivery of messages of %s failed", self._messages.stream)

    def _run(self) -> str:
        """Why it ended early although the destination answers; empty if it was stopped."""
        # Messages that failed are on top: they are sent first.
        parts = [_Part(self._messages, range(len(self._messages.numbers)))]
        error = ""
        failures = 0
        while parts and self._settlements.skipped_count < MAX_SKIPPED:
            part = parts[-1]
            if part.next == len(part.places):
                parts.pop()
                continue
            if self._stop.is_set or failures == _MAX_FAILURES:
                return error
            limit = part.limit
            if skipped := self._settlements.skipped_count:
                limit = min(limit, MAX_SKIPPED - skipped)
            call = self._destination.prepare(part.messages, part.next, limit)
            if not call.numbers:
                self._settle(part, call, Answer())
                continue
            if not self._wait(failures):
                return error
            answer = self._send(call)
            if answer is None:
                part.suspect(call)
            else:
                self._settle(part, call, answer)
                failures = failures + 1 if answer.failed else 0
                error = next(iter(answer.failed.values()), "")
                if answer.failed:
                    parts.append(part.pick(call, answer.failed))
            # Last, because `pause` may make a call.
            self._next_call = self._clock() + self._destination.pause
            self._on_progress()
        return error if parts else ""

    def _wait(self, failures: int) -> bool:
        """Waits for the next call; False if the delivery is stopped meanwhile."""
        pause = self._next_call - self._clock()
        if failures:
            max_pause = _FIRST_PAUSE * 2 ** (failures - 1)
            # Deliveries that failed at the same time are not retried at the same time.
            pause = max(pause, random.uniform(max_pause / 2, max_pause))  # noqa: S311 - no secret
        return pause <= 0 or self._stop.wait(pause)

    def _send(self, call: Call) -> Answer | None:
        """The answer to a call; None if it is to be repeated with fewer messages."""
        self._sent_bytes += call.size
        try:
            return self._destination.send(call)
        except RefusedError as refusal:
            if len(call.numbers) > 1:
                return None
            return Answer(refused=dict.fromkeys(call.numbers, str(refusal)))

    def _settle(self, part: _Part, call: Call, answer: Answer) -> None:
        places = part.places[call.start : call.stop]
        numbers = part.messages.numbers[call.start : call.stop]
        reasons = {**answer.refused, **call.skipped}
        with self._lock:
            if not reasons and not answer.failed:
                self._settlements.note_arrived(places)
            else:
                for place, number in zip(places, numbers, strict=True):
                    if number in answer.failed:
                        continue
                    if number in reasons:
                        self._settlements.note_skipped(place, reasons[number])
                    else:
                        self._settlements.note_arrived((place,))
        part.advance(call)

    def delivery(self) -> Delivery:
        """The result so far."""
        with self._lock:
            return msgspec.structs.replace(
                self._settlements.describe(),
                sent_bytes=self._sent_bytes,
                error=self._error,
                pause=max(self._next_call - self._clock(), self._retry_after, 0.0),
            )
