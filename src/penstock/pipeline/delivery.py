"""The delivery of a slice of messages, in order: the part that all destinations share.

It decides which messages are sent again and when, and finds the message for which a call was
refused.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence

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

# Seconds before messages that failed are sent again, doubled with each failure in a row.
_FIRST_PAUSE = 0.05
_MAX_PAUSE = 1.0
# After so many calls in a row with failed messages, the broker decides when to try again.
_MAX_FAILURES = 6
# A delivery ends when it has skipped so many messages: a report has to name all of them.
MAX_SKIPPED = 1000


class _Part:
    """Messages on their way: all of them, or those of a call that failed."""

    def __init__(self, messages: Messages, places: Sequence[int]) -> None:
        self.messages = messages
        # Where they are among all.
        self.places = places
        self.next = 0
        # A call before this place was refused, for one of the messages that are left of it.
        self._suspect_stop = 0
        self._limit = len(places)

    @property
    def is_done(self) -> bool:
        return self.next == len(self.places)

    @property
    def limit(self) -> int:
        suspects = self._suspect_stop - self.next
        return (suspects + 1) // 2 if suspects > 0 else self._limit

    def suspect(self, call: Call) -> None:
        self._suspect_stop = call.stop
        self._limit = 1

    def advance(self, call: Call) -> None:
        self.next = call.stop
        # Where one message was refused there may be more: calls get larger again bit by bit.
        if self.next >= self._suspect_stop:
            self._limit = min(2 * self._limit, len(self.places))

    def pick(self, places: Sequence[int]) -> _Part:
        return _Part(self.messages.pick(places), [self.places[place] for place in places])


class MessageDelivery:
    """A delivery of the slice [messages.first, end). One thread runs it, any thread may look."""

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
        # No call may begin before.
        self._next_call = clock()
        # The results of a call become visible at once.
        self._lock = threading.Lock()

    def run(self) -> None:
        try:
            self._error = self._run()
        except UnavailableError as unavailable:
            self._error = str(unavailable) or "the destination is not available"
            self._retry_after = unavailable.retry_after or 0.0
        except Exception as unexpected:
            # The status of the export shows it.
            self._error = f"{type(unexpected).__name__}: {unexpected}"
            logger.exception("the delivery of messages of %s failed", self._messages.stream)

    def _run(self) -> str:
        """Why it ended early, though the destination can be reached; empty if it was stopped."""
        # Messages that failed lie on top: they are sent first.
        parts = [_Part(self._messages, range(len(self._messages.numbers)))]
        error = ""
        failures = 0
        while parts and self._settlements.skipped_count < MAX_SKIPPED:
            part = parts[-1]
            if part.is_done:
                parts.pop()
                continue
            if self._stop.is_set or failures == _MAX_FAILURES:
                return error
            limit = part.limit
            if skipped := self._settlements.skipped_count:
                limit = min(limit, MAX_SKIPPED - skipped)
            call = self._destination.prepare(part.messages, part.next, limit)
            if call.content is None:
                self._settle(part, call, Answer())
                continue
            if not self._wait(failures):
                return error
            answer = self._send(part, call)
            if answer is None:
                part.suspect(call)
            else:
                self._settle(part, call, answer)
                failures = failures + 1 if answer.failed else 0
                error = next(iter(answer.failed.values()), "")
                if answer.failed:
                    parts.append(part.pick(_find(part.messages, call, answer.failed)))
            # Last, because it may make a call itself.
            self._next_call = self._clock() + self._destination.pause
            self._on_progress()
        return error if parts else ""

    def _wait(self, failures: int) -> bool:
        """Waits until the next call may begin; False if the delivery is stopped meanwhile."""
        pause = self._next_call - self._clock()
        if failures:
            max_pause = min(_FIRST_PAUSE * 2 ** (failures - 1), _MAX_PAUSE)
            # Deliveries that failed at the same time are not retried at the same time.
            pause = max(pause, random.uniform(max_pause / 2, max_pause))  # noqa: S311 - no secret
        return pause <= 0 or self._stop.wait(pause)

    def _send(self, part: _Part, call: Call) -> Answer | None:
        """The answer to a call; None if it is to be made again with fewer messages."""
        self._sent_bytes += call.size
        try:
            return self._destination.send(call)
        except RefusedError as refusal:
            numbers = part.messages.numbers[call.start : call.stop]
            sent = [number for number in numbers if number not in call.skipped]
            return None if len(sent) > 1 else Answer(refused=dict.fromkeys(sent, str(refusal)))

    def _settle(self, part: _Part, call: Call, answer: Answer) -> None:
        with self._lock:
            self._note(part, call, answer)
        part.advance(call)

    def _note(self, part: _Part, call: Call, answer: Answer) -> None:
        places = part.places[call.start : call.stop]
        if not (call.skipped or answer.failed or answer.refused):
            self._settlements.note_arrived(places)
            return
        reasons = {**answer.refused, **call.skipped}
        numbers = part.messages.numbers[call.start : call.stop]
        for place, number in zip(places, numbers, strict=True):
            if number in answer.failed:
                continue
            if number in reasons:
                self._settlements.note_skipped(place, reasons[number])
            else:
                self._settlements.note_arrived((place,))

    def delivery(self) -> Delivery:
        """The result, as far as it got."""
        with self._lock:
            return msgspec.structs.replace(
                self._settlements.describe(),
                sent_bytes=self._sent_bytes,
                error=self._error,
                pause=max(self._next_call - self._clock(), self._retry_after, 0.0),
            )


def _find(messages: Messages, call: Call, numbers: Iterable[int]) -> list[int]:
    """The places of these numbers in a call."""
    wanted = set(numbers)
    return [place for place in range(call.start, call.stop) if messages.numbers[place] in wanted]
