"""Asking the broker where the messages of a slice are, and noticing those that are not there."""

from __future__ import annotations

from penstock.client.internal import InternalClient
from penstock.errors import ResourceNotFoundException
from penstock.model.storage import Location, StreamPosition
from penstock.spark.losses import describe_cut_off, describe_removed, report_loss
from penstock.spark.planning import Piece, plan_pieces
from penstock.spark.times import ALL_TIMES, TimeRange


class Locator:
    """Plans slices of streams; what is lost is an error, or a warning where that is allowed."""

    def __init__(self, client: InternalClient, *, fails_on_loss: bool) -> None:
        self._client = client
        self._fails = fails_on_loss

    def plan(
        self, stream: StreamPosition, first: int, end: int, times: TimeRange = ALL_TIMES
    ) -> list[Piece]:
        """The pieces that hold the messages [first, end) of these times and still exist."""
        location = self._locate(stream, first, end)
        if location is None:
            return []
        oldest, newest_end = location.oldest_sequence_number, location.end_sequence_number
        if first < min(oldest, end):
            self._report_loss(stream, describe_removed(first, min(oldest, end)))
        if newest_end < end:
            self._report_loss(stream, describe_cut_off(newest_end, end))
        return plan_pieces(stream.name, stream.stream_id, location, first, end, times)

    def find_end(self, stream: StreamPosition, first: int, end: int, max_bytes: int) -> int:
        """The number up to which the messages of [first, end) fit so many bytes; one at least."""
        location = self._locate(stream, first, end, max_bytes)
        return first if location is None else location.limit_sequence_number

    def _locate(
        self, stream: StreamPosition, first: int, end: int, max_bytes: int | None = None
    ) -> Location | None:
        if first >= end:
            return None
        try:
            return self._client.locate_messages(
                stream.name, stream.stream_id, first, end, max_bytes
            )
        except ResourceNotFoundException:
            self._report_loss(stream, "it was deleted before it was read")
            return None

    def _report_loss(self, stream: StreamPosition, what: str) -> None:
        report_loss(stream.name, what, fails=self._fails)
