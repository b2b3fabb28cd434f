"""Planning of slices with the broker's locations of messages, and detection of lost messages."""

from __future__ import annotations

from penstock.client.internal import InternalClient
from penstock.errors import ResourceNotFoundException
from penstock.model.storage import Location, StreamPosition
from penstock.spark.losses import describe_cut_off, describe_removed, report_loss
from penstock.spark.planning import Piece, plan_pieces
from penstock.spark.times import ALL_TIMES, TimeRange


class Locator:
    """Plans slices of streams. Lost messages are an error, or a warning without `fails_on_loss`."""

    def __init__(self, client: InternalClient, *, fails_on_loss: bool) -> None:
        self._client = client
        self._fails = fails_on_loss

    def plan(
        self, stream: StreamPosition, first: int, end: int, times: TimeRange = ALL_TIMES
    ) -> list[Piece]:
        """Plans the pieces of [first, end) that exist and may have messages of these times."""
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
        """Returns the end of the messages from `first` on that fit in `max_bytes`; at least one."""
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

    def _report_loss(self, stream: StreamPosition, loss: str) -> None:
        report_loss(stream.name, loss, fails=self._fails)
