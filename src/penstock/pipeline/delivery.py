"""Delivery: messages brought to a destination, in order, for as long as there is time.

The part that is the same for all destinations: what is sent again and when, how the message is
found for which a call was refused, and what the broker is told in the end.
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

logger = logging.getLogger(__name__)

# Seconds before what failed is sent again; each time that it fails it is twice as long.
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
# A stream of which so much is lost at once is worth a look before more of it is.
MOST_SKIPPED = 1000


class Budget:
    """The time that a delivery has."""

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.clock = clock
        self._sleep = sleep
        self._end = clock() + seconds

    def renew(self, seconds: float) -> None:
        """So much more from now on."""
        self._end = self.clock() + seconds

    def is_over(self) -> bool:
        return self.clock() >= self._end

    def pause(self, seconds: float) -> bool:
        """Waits; False, at once, if nothing could be done afterwards."""
        if self.clock() + seconds >= self._end:
            return False
        if seconds > 0:
            self._sleep(seconds)
        return not self.is_over()


def deliver(destination: Destination, messages: Messages, end: int, budget: Budget) -> Delivery:
    """Brings what there is of the slice [messages.first, end) to its destination."""
    attempt = Attempt(destination, messages, end, budget)
    attempt.run()
    return attempt.delivery()


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


class Attempt:
    """One delivery of the slice [messages.first, end), under way.

    One thread runs it; another one may look at any time how far it got.
    """

    def __init__(
        self, destination: Destination, messages: Messages, end: int, budget: Budget
    ) -> None:
        self._destination = destination
        self._messages = messages
        self._budget = budget
        self._error = ""
        self._retry_after: float | None = None
        self._timed_out = False
        self._slowest_call = 0.0
        self._settlements = Settlements(messages, end)
        self._sent_bytes = 0
        # Before it no call is to be made.
        self._next_call = budget.clock()
        # What has become of a call is noted as a whole before anybody looks.
        self._lock = threading.Lock()

    def run(self) -> None:
        try:
            self._error = self._run()
        except UnavailableError as unavailable:
            self._error = str(unavailable) or "the destination is not available"
            self._retry_after = unavailable.retry_after
            self._timed_out = unavailable.timed_out
        except Exception as unexpected:
            # Whatever it is, the broker has to hear of it: it is what the user looks at.
            self._error = f"{type(unexpected).__name__}: {unexpected}"
            logger.exception("the delivery of messages of %s failed", self._messages.stream)

    def _run(self) -> str:
        """Why it is not done, though the destination can be reached; empty if only time ran out."""
        # What failed lies on top: it goes first.
        parts = [_Part(self._messages, range(len(self._messages.numbers)))]
        error = ""
        failures = 0
        while parts and self._settlements.skipped_count < MOST_SKIPPED:
            part = parts[-1]
            if part.is_done:
                parts.pop()
                continue
            if self._budget.is_over():
                return error
            limit = part.limit
            if skipped := self._settlements.skipped_count:
                # Not otherwise: most destinations skip nothing, and some take any number at once.
                limit = min(limit, MOST_SKIPPED - skipped)
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
            # Last, for it may ask the destination itself: what has arrived is noted by now.
            self._next_call = self._budget.clock() + self._destination.pause
        return error if parts else ""

    def _wait(self, failures: int) -> bool:
        """Waits until the next call may be made; False if that is too late."""
        pause = self._next_call - self._budget.clock()
        if failures:
            longest = min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE)
            # Or all who were refused together would come back together.
            pause = max(pause, random.uniform(longest / 2, longest))  # noqa: S311 - no secret
        return pause <= 0 or self._budget.pause(pause)

    def _send(self, part: _Part, call: Call) -> Answer | None:
        """The answer to a call; None if it is to be made again with fewer messages."""
        self._sent_bytes += call.size
        began = self._budget.clock()
        try:
            return self._destination.send(call)
        except RefusedError as refusal:
            numbers = part.messages.numbers[call.start : call.stop]
            sent = [number for number in numbers if number not in call.skipped]
            return None if len(sent) > 1 else Answer(refused=dict.fromkeys(sent, str(refusal)))
        finally:
            self._slowest_call = max(self._slowest_call, self._budget.clock() - began)

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
        """What became of it, as far as it got."""
        with self._lock:
            return msgspec.structs.replace(
                self._settlements.describe(),
                sent_bytes=self._sent_bytes,
                error=self._error,
                retry_after=self._retry_after,
                timed_out=self._timed_out,
                slowest_call=self._slowest_call,
                pause=max(self._next_call - self._budget.clock(), 0.0),
            )

    def leave_behind(self) -> None:
        """Nothing: what it is about to deliver counts as not delivered, and is sent again."""


def _find(messages: Messages, call: Call, numbers: Iterable[int]) -> list[int]:
    """The places of these numbers in a call."""
    wanted = set(numbers)
    return [place for place in range(call.start, call.stop) if messages.numbers[place] in wanted]
