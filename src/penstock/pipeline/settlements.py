"""Which messages of a slice have been dealt with, and what the broker is told of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.model.exporting import TaskEvent, Upload
from penstock.pipeline.destinations.destination import Messages


class UploadedFile(NamedTuple):
    path: str
    fingerprint: str


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a slice in one attempt."""

    # All messages of the slice before it have arrived or were skipped.
    settled_end: int
    # Those behind it of which the same is true: they are not sent again.
    arrived: list[int] = []
    exported_messages: int = 0
    exported_bytes: int = 0
    # Numbers, and why these messages will never arrive.
    skipped: list[tuple[int, str]] = []
    # Put on the wire, in vain or not.
    sent_bytes: int = 0
    # Why it ended before all was done; empty if it did not, or if only time was short.
    error: str = ""
    # Seconds that the destination asked to be left alone.
    retry_after: float | None = None
    timed_out: bool = False
    # Seconds that one call took.
    slowest_call: float = 0.0
    # Seconds before the next call may be made.
    pause: float = 0.0
    # Of S3 tasks: see ExportReport.
    events: list[TaskEvent] = []
    uploads: list[Upload] = []
    abandoned: list[Upload] = []
    # Files that are where they should be: they may be deleted once the broker knows.
    uploaded: list[UploadedFile] = []


class Settlements:
    """Messages by their places in the slice [messages.first, end)."""

    def __init__(self, messages: Messages, end: int) -> None:
        self._messages = messages
        self._end = end
        self._is_settled = bytearray(len(messages.numbers))
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
            self._is_settled[place] = True

    def note_skipped(self, place: int, reason: str) -> None:
        self._is_settled[place] = True
        self._skipped.append((self._messages.numbers[place], reason))

    def count_ahead(self) -> int:
        """How many are settled behind one that is not."""
        first = self._is_settled.find(False)
        return 0 if first < 0 else self._is_settled.count(True, first)

    def describe(self) -> Delivery:
        numbers = self._messages.numbers
        first = self._is_settled.find(False)
        arrived = range(first, len(numbers)) if first >= 0 else ()
        return Delivery(
            settled_end=self._end if first < 0 else numbers[first],
            arrived=[numbers[place] for place in arrived if self._is_settled[place]],
            exported_messages=self._exported_messages,
            exported_bytes=self._exported_bytes,
            skipped=sorted(self._skipped),
        )
