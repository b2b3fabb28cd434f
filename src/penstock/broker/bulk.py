"""Requests of bulk readers: ends of streams, locations of messages, and stored bytes.

A bulk reader (Spark) plans first, and then reads in many tasks. On the broker's machine it maps the
segments of the plan; on other machines it gets the same bytes in answers.
"""

from __future__ import annotations

import asyncio
import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock.broker.access import Access
from penstock.broker.answering import answer_in_room
from penstock.broker.memory import AnswerMemory, AnswerRoom
from penstock.broker.streams import Stream, Streams
from penstock.broker.waiting import Waiter, seconds_to_wait
from penstock.errors import (
    InvalidRequestException,
    ResourceNotFoundException,
    StreamManagerException,
)
from penstock.store.log import FileLog
from penstock.store.record import ENTRY
from penstock.wire.requests import (
    LocateMessagesRequest,
    ReadStoredRequest,
    Request,
    WatchStreamsRequest,
)

# Other connections wait while an answer is read, so its size is limited.
_MAX_BYTES = 4 * 1024 * 1024
_MAX_ENTRIES = 65_536

# Compiling a pattern may block the event loop for milliseconds.
_MAX_WILDCARD_PATTERNS = 64
_WILDCARDS = frozenset("*?[")


class BrokerLocation(NamedTuple):
    """The root directory of a broker, and the id of its run, which is also in `broker.json`."""

    root: str
    instance: str


class BulkCall(Protocol):
    @property
    def access(self) -> Access: ...
    def succeed(self, **fields: Any) -> None: ...
    def succeed_in(self, room: AnswerRoom, **fields: Any) -> None: ...
    def fail(self, error: StreamManagerException) -> None: ...
    @property
    def answer_by(self) -> float: ...
    def allow_seconds(self, seconds: float) -> None: ...
    def work(self, steps: Iterator[None]) -> None: ...
    def on_close(self, cancel: Callable[[], object]) -> None: ...


class BulkHandlers:
    def __init__(
        self,
        streams: Streams,
        location: BrokerLocation,
        answers: AnswerMemory,
        count_read: Callable[[int, int], None],
    ) -> None:
        self._streams = streams
        self._location = location
        self._answers = answers
        self._count_read = count_read

    def table(self) -> dict[type[Request], Callable[[Any, Any], None]]:
        return {
            WatchStreamsRequest: self._watch,
            LocateMessagesRequest: self._locate,
            ReadStoredRequest: self._read_stored,
        }

    def _watch(self, call: BulkCall, request: WatchStreamsRequest) -> None:
        call.access.require(request.operation)
        watch = _Watch(self._streams, call, request)
        if not request.wait_millis or watch.has_new_messages():
            watch.answer()
            return
        call.allow_seconds(request.wait_millis / 1000)
        watch.begin(seconds_to_wait(request.wait_millis))

    def _locate(self, call: BulkCall, request: LocateMessagesRequest) -> None:
        call.access.require(request.operation, request.name)
        stream = self._find(request.name, request.stream_id)
        log = stream.log
        start = max(request.first_sequence_number, log.oldest)
        stop = limit = min(request.end_sequence_number, log.end)
        if request.max_bytes is not None and start < stop:
            limit = log.find_end(start, stop, request.max_bytes)
        call.succeed(
            root=self._location.root,
            instance=self._location.instance,
            hasFiles=isinstance(log, FileLog),
            oldestSequenceNumber=log.oldest,
            endSequenceNumber=log.end,
            limitSequenceNumber=limit,
            segments=[msgspec.to_builtins(summary) for summary in log.summaries(start, stop)],
        )

    def _read_stored(self, call: BulkCall, request: ReadStoredRequest) -> None:
        call.access.require(request.operation, request.name)

        def build(room: AnswerRoom) -> Iterator[None]:
            stream = self._find(request.name, request.stream_id)
            start = max(request.first_sequence_number, stream.log.oldest)
            stop = min(request.end_sequence_number, stream.log.end, start + _MAX_ENTRIES)
            max_bytes = room.limit_step(min(request.max_bytes, _MAX_BYTES))
            run = stream.read_stored(start, stop, max_bytes)
            room.require(len(run.entries) + len(run.payloads))
            self._count_read(len(run.entries) // ENTRY.size, len(run.payloads))
            call.succeed_in(
                room,
                firstSequenceNumber=run.first_sequence_number,
                position=run.position,
                entries=run.entries,
                payloads=run.payloads,
            )
            yield from ()

        for _ in answer_in_room(call, self._answers, build):
            pass

    def _find(self, name: str, stream_id: str | None) -> Stream:
        stream = self._streams.find(name)
        if stream_id is not None and stream.stored.id != stream_id:
            raise ResourceNotFoundException(
                f"the message stream {name!r} was deleted and created again"
            )
        return stream


class _Watch:
    """Waits for several streams at once: the first new message ends it."""

    def __init__(self, streams: Streams, call: BulkCall, request: WatchStreamsRequest) -> None:
        self._streams = streams
        self._call = call
        self._matches = _compile(request.patterns)
        self._next_numbers = request.next_numbers
        self._waiters: list[Waiter] = []
        self._change: Waiter | None = None
        self._timer: asyncio.TimerHandle | None = None

    def has_new_messages(self) -> bool:
        nexts = self._next_numbers
        return any(stream.log.end > nexts.get(stream.name, -1) for stream in self._matching())

    def _matching(self) -> list[Stream]:
        sees, matches = self._call.access.sees, self._matches
        return [stream for stream in self._streams if matches(stream.name) and sees(stream.name)]

    def answer(self) -> None:
        self._call.succeed(
            streams=[
                {
                    "name": stream.name,
                    "streamId": stream.stored.id,
                    "oldestSequenceNumber": stream.log.oldest,
                    "endSequenceNumber": stream.log.end,
                }
                for stream in self._matching()
            ]
        )

    def begin(self, seconds: float) -> None:
        """Waits, then answers. Without new messages, `next_numbers` has all matching streams."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._finish, False)
        self._call.on_close(self._cancel)
        for stream in self._matching():
            waiter = Waiter(self._next_numbers[stream.name] + 1, self._finish)
            self._waiters.append(waiter)
            stream.waiters.add(waiter)
        self._await_change()

    def _await_change(self) -> None:
        self._change = Waiter(self._streams.change_count + 1, self._on_change)
        self._streams.change_waiters.add(self._change)

    def _on_change(self, has_changed: bool) -> None:
        """Called when definitions have changed: a new stream may match."""
        if has_changed and not self.has_new_messages():
            self._await_change()
        else:
            self._finish(has_changed)

    def _finish(self, _: bool) -> None:
        self._cancel()
        # Answers in a turn of its own connection. This turn belongs to another connection's append.
        self._call.work(self._answer_once())

    def _answer_once(self) -> Iterator[None]:
        self.answer()
        yield from ()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._change is not None:
            self._change.cancel()
        for waiter in self._waiters:
            waiter.cancel()


def _compile(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Returns a function that tests names. A pattern without wildcards is a name."""
    names = {pattern for pattern in patterns if _WILDCARDS.isdisjoint(pattern)}
    wildcards = set(patterns) - names
    if len(wildcards) > _MAX_WILDCARD_PATTERNS:
        raise InvalidRequestException(
            f"patterns has {len(wildcards)} patterns with wildcards: expected at most "
            f"{_MAX_WILDCARD_PATTERNS}; names are not limited"
        )
    matchers = [_matcher(pattern) for pattern in wildcards]
    return lambda name: name in names or any(matches(name) for matches in matchers)


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(fnmatch.translate(pattern)).match
