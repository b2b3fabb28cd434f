"""The delivery of a slice of messages, in order: the part that all destinations share.

It decides which messages are retried and when, and finds the invalid message of a refused call.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from penstock.model.exporting import TaskEvent, Upload
from penstock.pipeline.destinations.destination import (
    CallResult,
    Destination,
    DestinationCall,
    Messages,
    RefusedError,
    UnavailableError,
)

# The maximum number of seconds before the first retry, doubled with each consecutive failure.
_FIRST_PAUSE = 0.05
# After this many consecutive calls with failed messages, the broker decides when to retry.
_MAX_FAILURES = 6
# A delivery ends when it has skipped this many messages, because a report has to list all of them.
MAX_SKIPPED_PER_DELIVERY = 1000


class StoppedError(Exception):
    """The delivery was stopped before the operation was complete."""


class StopSignal:
    """A signal to all threads of a delivery to stop."""

    def __init__(self) -> None:
        self._event = threading.Event()
        # The lease has ended: the broker ignores the results of running calls.
        self.is_lost = False

    @property
    def is_set(self) -> bool:
        """Whether no further call may begin."""
        return self._event.is_set()

    def stop(self, *, is_lost: bool = False) -> None:
        self.is_lost = self.is_lost or is_lost
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Waits; returns False, without further delay, if the delivery is stopped."""
        return not self._event.wait(max(seconds, 0.0))

    def check(self) -> None:
        """Raises StoppedError if the lease has ended."""
        if self.is_lost:
            raise StoppedError


class UploadedFile(NamedTuple):
    sequence_number: int
    path: str
    fingerprint: str


class DeliveryTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of a delivery so far. A report has the changes since the previous report."""

    # All messages of the slice before this number have arrived or were skipped.
    settled_end: int
    # Later messages that have arrived or were skipped.
    arrived: list[int] = []
    exported_messages: int = 0
    exported_bytes: int = 0
    # Sequence numbers and reasons, in the order in which the messages were skipped.
    skipped: list[tuple[int, str]] = []
    # Bytes on the wire, including failed calls.
    sent_bytes: int = 0
    # Why the delivery ended early; empty if it is complete or was stopped.
    error: str = ""
    # The minimum number of seconds before the next call.
    pause: float = 0.0
    # For S3 tasks: see DeliveryReport.
    events: list[TaskEvent] = []
    uploads: list[Upload] = []
    abandoned: list[Upload] = []
    # Files that may be deleted when their tasks are reported.
    uploaded: list[UploadedFile] = []


class Delivery(Protocol):
    """A delivery. One thread calls `run`; any of its threads may call `totals`."""

    def run(self) -> None: ...
    def totals(self) -> DeliveryTotals: ...


class SliceProgress:
    """Which messages of a slice have arrived or were skipped. A place is an index in `messages`."""

    def __init__(self, messages: Messages, end: int) -> None:
        self._messages = messages
        self._end = end
        self._is_done = bytearray(len(messages.numbers))
        self._exported_messages = 0
        self._exported_bytes = 0
        self._skipped: list[tuple[int, str]] = []

    @property
    def skipped_count(self) -> int:
        return len(self._skipped)

    def note_arrived(self, places: Sequence[int]) -> None:
        payloads = self._messages.payloads
        self._exported_messages += len(places)
        for place in places:
            self._exported_bytes += len(payloads[place])
            self._is_done[place] = True

    def note_skipped(self, place: int, reason: str) -> None:
        self._is_done[place] = True
        self._skipped.append((self._messages.numbers[place], reason))

    def count_ahead(self) -> int:
        """The number of messages that are done after the first pending message."""
        first = self._is_done.find(False)
        return 0 if first < 0 else self._is_done.count(True, first)

    def describe(self) -> DeliveryTotals:
        numbers = self._messages.numbers
        first = self._is_done.find(False)
        ahead = range(first, len(numbers)) if first >= 0 else ()
        return DeliveryTotals(
            settled_end=self._end if first < 0 else numbers[first],
            arrived=[numbers[place] for place in ahead if self._is_done[place]],
            exported_messages=self._exported_messages,
            exported_bytes=self._exported_bytes,
            skipped=list(self._skipped),
        )


class MessageDelivery:
    """Delivers the messages of a slice, which ends before `end`, in one thread."""

    def __init__(
        self,
        destination: Destination,
        messages: Messages,
        end: int,
        stop: StopSignal,
        # Called after each call.
        on_progress: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._destination = destination
        self._messages = messages
        self._stop = stop
        self._on_progress = on_progress
        self._clock = clock
        self._progress = SliceProgress(messages, end)
        self._sent_bytes = 0
        # Consecutive calls with failed messages, and the reason of the last failure.
        self._failures = 0
        self._error = ""
        self._retry_after = 0.0
        # The earliest time of the next call.
        self._next_call = clock()

    def totals(self) -> DeliveryTotals:
        return msgspec.structs.replace(
            self._progress.describe(),
            sent_bytes=self._sent_bytes,
            error=self._error,
            pause=max(self._next_call - self._clock(), self._retry_after, 0.0),
        )

    def run(self) -> None:
        try:
            self._deliver(range(len(self._messages.numbers)))
        except UnavailableError as error:
            self._error, self._retry_after = str(error), error.retry_after or 0.0

    def _deliver(self, places: Sequence[int]) -> bool:
        """Sends the messages at these places; False if the delivery has to end early."""
        start = 0
        limit = max_limit = self._destination.max_messages or len(places)
        # The end of a refused call, if its invalid message is not found yet.
        refused_end = 0
        while start < len(places):
            if (
                self._stop.is_set
                or self._failures == _MAX_FAILURES
                or self._progress.skipped_count >= MAX_SKIPPED_PER_DELIVERY
            ):
                return False
            unchecked = refused_end - start
            taken = places[start : start + ((unchecked + 1) // 2 if unchecked > 0 else limit)]
            call = self._destination.prepare(self._messages.pick(taken))
            taken = taken[: call.message_count]
            answer: CallResult | None = CallResult()
            if call.numbers:
                if not self._wait():
                    return False
                answer = self._send(call)
            failed: list[int] = []
            if answer is None:
                refused_end, limit = start + call.message_count, 1
            else:
                failed = self._note_result(taken, call, answer)
                start += call.message_count
                # Invalid messages are often close to each other: calls grow slowly.
                if start >= refused_end:
                    limit = min(2 * limit, max_limit)
            if call.numbers:
                self._on_progress()
                # Last, because `pause` may make a call.
                self._next_call = self._clock() + self._destination.pause
            # Failed messages are retried before others are sent.
            if failed and not self._deliver(failed):
                return False
        return True

    def _wait(self) -> bool:
        """Waits until the next call may begin; False if the delivery is stopped."""
        pause = self._next_call - self._clock()
        if self._failures:
            max_pause = _FIRST_PAUSE * 2 ** (self._failures - 1)
            # Jitter: deliveries that failed at the same time retry at different times.
            pause = max(pause, random.uniform(max_pause / 2, max_pause))  # noqa: S311 - no secret
        return pause <= 0 or self._stop.wait(pause)

    def _send(self, call: DestinationCall) -> CallResult | None:
        """The answer to a call; None if fewer messages have to be sent."""
        self._sent_bytes += call.size
        try:
            answer = self._destination.send(call)
        except RefusedError as refusal:
            if len(call.numbers) > 1:
                return None
            answer = CallResult(refused=dict.fromkeys(call.numbers, str(refusal)))
        self._failures = self._failures + 1 if answer.failed else 0
        self._error = next(iter(answer.failed.values()), "")
        return answer

    def _note_result(
        self, places: Sequence[int], call: DestinationCall, answer: CallResult
    ) -> list[int]:
        """Notes the result of a call, and returns the places of failed messages."""
        reasons = {**answer.refused, **call.skipped}
        if not reasons and not answer.failed:
            self._progress.note_arrived(places)
            return []
        failed = []
        for place in places:
            number = self._messages.numbers[place]
            if number in answer.failed:
                failed.append(place)
            elif number in reasons:
                self._progress.note_skipped(place, reasons[number])
            else:
                self._progress.note_arrived((place,))
        return failed
