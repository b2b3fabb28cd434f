"""Which messages of a slice have arrived or were skipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.model.exporting import TaskEvent, Upload
from penstock.pipeline.destinations.destination import Messages


class UploadedFile(NamedTuple):
    sequence_number: int
    path: str
    fingerprint: str


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a delivery so far."""

    # All messages of the slice with lower numbers have arrived or were skipped.
    settled_end: int
    # Messages with higher numbers that have arrived or were skipped.
    arrived: list[int] = []
    exported_messages: int = 0
    exported_bytes: int = 0
    # Numbers, and why their messages will never arrive, in the order in which they were skipped.
    skipped: list[tuple[int, str]] = []
    # Bytes on the wire, also of calls that failed.
    sent_bytes: int = 0
    # Why it ended early; empty if it did not, or was stopped.
    error: str = ""
    # The minimum number of seconds before the next call.
    pause: float = 0.0
    # S3 tasks: see DeliveryReport.
    events: list[TaskEvent] = []
    uploads: list[Upload] = []
    abandoned: list[Upload] = []
    # Uploaded files, by the number of their task: they may be deleted when that is reported.
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
        """The number of settled messages after the first one that is not settled."""
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
            skipped=list(self._skipped),
        )
