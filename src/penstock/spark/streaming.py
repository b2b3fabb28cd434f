"""spark.readStream: existing and new messages of streams, in micro-batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.client.internal import InternalClient
from penstock.errors import SettingError
from penstock.model.storage import StreamPosition
from penstock.spark.admission import divide_limit
from penstock.spark.locating import Locator
from penstock.spark.losses import describe_cut_off, report_loss
from penstock.spark.offsets import Offsets, StreamOffset
from penstock.spark.options import StreamReadOptions, Via
from penstock.spark.piece_reader import PieceReader, read_task
from penstock.spark.place import Place
from penstock.spark.planning import Piece, ReadTask, plan_tasks
from penstock.spark.python import end_source_process
from penstock.spark.selection import (
    Positions,
    parse_streams,
    require_found,
    require_one_bound,
)
from penstock.spark.times import TimeRange

# A trigger without messages waits at the broker, so that an idle query costs little. The time is
# short, because a query with several sources polls them in turn.
_WAIT_MILLIS = 100
# The key that marks an initial offset that is not yet in the checkpoint.
_NOT_IN_CHECKPOINT = "unmarked"


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Finds the offsets of a streaming query, plans its micro-batches and reads them in tasks.

    Spark keeps one instance in a separate process while a query runs, and passes copies of another
    instance to tasks.
    """

    def __init__(self, options: StreamReadOptions, clock: Callable[[], float] = time.time) -> None:
        self._options = options
        self._clock = clock
        self._streams = parse_streams(options.stream)
        self._starting = Positions.parse("startingPosition", options.starting_position, "latest")
        require_one_bound("starting", options.starting_position, options.starting_timestamp)
        self._times = TimeRange.parse(options.starting_timestamp, None)
        self._place: Place | None = None
        self._client: InternalClient | None = None
        self._initial: dict[str, Any] | None = None
        self._newest: Offsets | None = None
        # The end of a query with the trigger availableNow.
        self._target: Offsets | None = None

    # Offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        # Spark calls this several times before the first batch.
        if self._initial is None:
            self._initial = self._find_initial_offset()
        return self._initial

    def _find_initial_offset(self) -> dict[str, Any]:
        streams = self._connected().watch_streams(self._streams)
        require_found(self._streams, streams)
        self._starting.require_known(streams)
        initial = Offsets(
            (stream.name, StreamOffset(stream.stream_id, self._first_number(stream)))
            for stream in streams
        ).to_json()
        # The checkpoint has the initial offset only as the end of a first batch. A start at the
        # latest message or at a time gets an empty first batch, so that it is stable after a
        # restart.
        moves = self._starting.has_latest or self._options.starting_timestamp is not None
        return {**initial, _NOT_IN_CHECKPOINT: True} if moves else initial

    def _first_number(self, stream: StreamPosition) -> int:
        if self._options.starting_timestamp is not None:
            return self._find_time(stream)
        number = self._starting.resolve(stream)
        if number > stream.end_sequence_number:
            raise SettingError(
                f"option startingPosition is {number}: expected at most "
                f"{stream.end_sequence_number}, the end of stream {stream.name!r}"
            )
        return max(number, stream.oldest_sequence_number)

    def _find_time(self, stream: StreamPosition) -> int:
        """Returns the first message at or after startingTimestamp, or the end of the stream."""
        options = self._options
        oldest, end = stream.oldest_sequence_number, stream.end_sequence_number
        pieces = self._locator().plan(stream, oldest, end, self._times)
        assert self._place is not None
        # The driver does not require files, as it may run on another machine than the tasks.
        via: Via = "wire" if options.via == "wire" else "auto"
        with PieceReader(self._place, via=via, fails_on_loss=options.fail_on_data_loss) as reader:
            found = next((n for n in map(reader.find_first, pieces) if n is not None), None)
        if found is None and self._times.start > self._clock() * 1000:
            raise SettingError(
                f"option startingTimestamp is {options.starting_timestamp!r}, which is in the "
                f"future, and stream {stream.name!r} has no message from then on: expected a time "
                "up to now"
            )
        return end if found is None else found

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        options = self._options
        if options.max_messages_per_trigger is not None:
            return ReadMaxRows(options.max_messages_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        streams = self._connected().watch_streams(self._streams)
        self._target = _ends(streams)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        reached = Offsets.from_json(start)
        if _NOT_IN_CHECKPOINT in start:
            return reached.to_json()
        streams = self._watch(reached)
        self._newest = _ends(streams)
        self._report_missing(reached, streams)
        firsts = {stream.name: self._next_number(stream, reached) for stream in streams}
        ends = {stream.name: self._last_end(stream, firsts[stream.name]) for stream in streams}
        if not isinstance(limit, ReadAllAvailable):
            ends = self._limit_ends(streams, firsts, ends)
        return Offsets(
            (stream.name, StreamOffset(stream.stream_id, ends[stream.name])) for stream in streams
        ).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's
        return None if self._newest is None else self._newest.to_json()

    def _watch(self, reached: Offsets) -> list[StreamPosition]:
        nexts = {name: stream.next_number for name, stream in reached.items()}
        if self._target is None:
            return self._connected().watch_streams(self._streams, nexts, _WAIT_MILLIS)
        streams = self._connected().watch_streams(self._streams)
        return [stream for stream in streams if self._target.start_in(stream) is not None]

    def _report_missing(self, reached: Offsets, streams: Sequence[StreamPosition]) -> None:
        ids = {stream.name: stream.stream_id for stream in streams}
        for name, stream in reached.items():
            if not any(fnmatchcase(name, pattern) for pattern in self._streams):
                self._report_loss(
                    name, "the query read it before, but option stream no longer includes it"
                )
            elif name not in ids:
                self._report_loss(
                    name, f"it was deleted after message {stream.next_number - 1} was read"
                )
            elif ids[name] != stream.stream_id:
                self._report_loss(
                    name,
                    f"it was deleted after message {stream.next_number - 1} was read, and created "
                    "again with other messages",
                )

    def _next_number(self, stream: StreamPosition, reached: Offsets) -> int:
        """Returns the start of the next batch; its planning reports removed messages."""
        number = reached.start_in(stream)
        if number is None:
            # All messages of a stream that was created later are new.
            return stream.oldest_sequence_number
        if number > stream.end_sequence_number:
            self._report_loss(stream.name, describe_cut_off(stream.end_sequence_number, number))
        return min(max(number, stream.oldest_sequence_number), stream.end_sequence_number)

    def _last_end(self, stream: StreamPosition, first: int) -> int:
        target = None if self._target is None else self._target.start_in(stream)
        if target is None:
            return stream.end_sequence_number
        return max(first, min(target, stream.end_sequence_number))

    def _limit_ends(
        self, streams: Sequence[StreamPosition], firsts: dict[str, int], ends: dict[str, int]
    ) -> dict[str, int]:
        """Returns the ends of a batch within the limits of a trigger."""
        max_messages = self._options.max_messages_per_trigger
        max_bytes = self._options.max_bytes_per_trigger
        if max_messages is not None:
            backlogs = {name: end - firsts[name] for name, end in ends.items()}
            shares = divide_limit(max_messages, backlogs)
            ends = {name: min(end, firsts[name] + shares[name]) for name, end in ends.items()}
        if max_bytes is not None:
            behind = [stream for stream in streams if firsts[stream.name] < ends[stream.name]]
            locator = self._locator()
            sizes = {
                s.name: sum(p.cost for p in locator.plan(s, firsts[s.name], ends[s.name]))
                for s in behind
            }
            shares = divide_limit(max_bytes, sizes)
            for stream in behind:
                first, end, share = firsts[stream.name], ends[stream.name], shares[stream.name]
                ends[stream.name] = locator.find_end(stream, first, end, share) if share else first
        return ends

    # A batch

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        reached, wanted = Offsets.from_json(start), Offsets.from_json(end)
        streams = self._connected().watch_streams(self._streams)
        self._report_missing(wanted, streams)
        locator = self._locator()
        pieces: list[Piece] = []
        for stream in streams:
            first, last = reached.start_in(stream), wanted.start_in(stream)
            if last is None:
                continue
            if first is None:
                # All messages of a stream that was created later are new.
                first = stream.oldest_sequence_number
            pieces += locator.plan(stream, first, last)
        assert self._place is not None
        return plan_tasks(self._place, pieces, self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask)
        options = self._options
        yield from read_task(partition, via=options.via, fails_on_loss=options.fail_on_data_loss)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: Spark stores the offset, and streams keep messages for other readers."""

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
        end_source_process()

    def _locator(self) -> Locator:
        return Locator(self._connected(), fails_on_loss=self._options.fail_on_data_loss)

    def _report_loss(self, stream: str, loss: str) -> None:
        report_loss(stream, loss, fails=self._options.fail_on_data_loss)

    def _connected(self) -> InternalClient:
        if self._client is None:
            self._place = Place.find(self._options)
            self._client = self._place.connect()
        return self._client


def _ends(streams: Sequence[StreamPosition]) -> Offsets:
    return Offsets(
        (stream.name, StreamOffset(stream.stream_id, stream.end_sequence_number))
        for stream in streams
    )
