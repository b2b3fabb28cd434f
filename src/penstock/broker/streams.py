"""The streams of a broker, with the reads that wait for messages.

Called from the event loop only. A thread stores definition changes. The event loop applies a
change after it is stored; until then it serves the old definition.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary

from penstock.broker.descriptors import Shortages
from penstock.broker.moves import find_moves, rewound
from penstock.broker.rules import check_definition, check_update, names_status_stream
from penstock.broker.waiting import DefinitionCommits, GroupCommit, Waiters
from penstock.errors import (
    InvalidRequestException,
    MessageStoreReadErrorException,
    NotEnoughMessagesException,
    RequestPayloadTooLargeException,
    ResourceNotFoundException,
    ServerOutOfMemoryException,
    StreamManagerException,
    UnknownFailureException,
)
from penstock.model import (
    ExportConfig,
    ExportDefinition,
    ExportStatus,
    MessageStreamDefinition,
    MessageStreamInfo,
    Persistence,
    StorageStatus,
)
from penstock.model.export_definition import messages_behind
from penstock.model.limits import NAME_PATTERN
from penstock.model.message import MessageRun
from penstock.model.statistics import ExportActivity, ExportStatistics, StreamStatistics
from penstock.model.storage import StoredRun
from penstock.settings import Settings
from penstock.store.catalog import is_disk_full
from penstock.store.log import MessageTooLargeError, StreamFullError
from penstock.store.pool import lacks_descriptors
from penstock.store.segment import DamagedError
from penstock.store.space import NoSpaceError, is_no_space
from penstock.store.store import Store
from penstock.store.stored_stream import DefinitionChange, StoredStream

logger = logging.getLogger(__name__)

ALREADY_EXISTS = "the message stream already exists"  # existing clients compare this text

_NAME = re.compile(NAME_PATTERN)
# Programs compare this text to recognize the end of a stream.
_TIMED_OUT = "not enough messages to return before time out"


class Stream:
    """One stream of a running broker."""

    def __init__(
        self,
        stored: StoredStream,
        executor: Executor,
        reclaims: bool,
        note_flush: Callable[[float], None],
        shortages: Shortages,
    ) -> None:
        self._stored = stored
        self._shortages = shortages
        self._reclaims = reclaims
        self.log = stored.log
        self.waiters = Waiters()
        # The error of the last attempt to evict old messages.
        self.trim_error = ""
        self._end_at_start = stored.log.end
        self._commit = GroupCommit(
            executor, stored.log.flush, stored.log.flush_is_short, note_flush
        )

    @property
    def stored(self) -> StoredStream:
        return self._stored

    @property
    def definition(self) -> MessageStreamDefinition:
        return self._stored.definition

    @property
    def name(self) -> str:
        return self._stored.definition.name

    @property
    def flushes(self) -> bool:
        definition = self._stored.definition
        return definition.flush_on_write and definition.persistence is Persistence.File

    def append(self, payloads: Sequence[bytes], now: int, *, keeps_min_free: bool = True) -> int:
        """Appends all payloads or none, wakes waiting reads, and returns the first sequence number.

        Without `keeps_min_free`, the append may use the last `min_free_disk` bytes of the disk.
        """
        try:
            first = self.log.append(
                payloads, now, self._exported_end, keeps_min_free=keeps_min_free
            )
        except _TRANSLATED_ERRORS as error:
            raise self.explain(error) from None
        self.waiters.wake(first + len(payloads))
        return first

    def _exported_end(self) -> int:
        return self._stored.exported_end() if self._reclaims else 0

    def wait_for_disk(self, done: Callable[[BaseException | None], None]) -> None:
        self._commit.wait(done)

    def read(self, start: int, stop: int, max_bytes: int) -> MessageRun:
        with self._translating_reads():
            return self.log.read(start, stop, max_bytes)

    def read_stored(self, start: int, stop: int, max_bytes: int) -> StoredRun:
        """The stored bytes of [start, stop), unchecked; empty if there are no messages."""
        if start >= stop:
            return StoredRun(start, 0, b"", b"")
        with self._translating_reads():
            return self.log.read_stored(start, stop, max_bytes)

    @contextmanager
    def _translating_reads(self) -> Iterator[None]:
        try:
            yield
        except DamagedError as error:
            raise MessageStoreReadErrorException(
                f"stream {self.name!r}: {error}; continue reading from {error.next_number}"
            ) from None
        except OSError as error:
            raise self.explain(error) from None

    def explain(self, error: Exception) -> StreamManagerException:
        """Translates an error of the store for clients."""
        return _translate(self.name, error, self._shortages)

    def not_enough(self, start: int, wanted: int, *, waited: bool) -> NotEnoughMessagesException:
        if waited:
            return NotEnoughMessagesException(_TIMED_OUT)
        newest = self.log.end - 1
        if start > newest:
            return NotEnoughMessagesException(
                f"the desired start sequence number {start} is greater than the last sequence "
                f"number {newest} of the message stream"
            )
        return NotEnoughMessagesException(
            f"the stream has {newest - start + 1} messages from {start} on, and minMessageCount is "
            f"{wanted}"
        )

    def describe(self) -> MessageStreamInfo:
        definition = self._stored.definition
        exports = definition.export_definition
        return MessageStreamInfo(
            # Empty lists are included: programs index and assign into them.
            MessageStreamDefinition(
                name=definition.name,
                max_size=definition.max_size,
                stream_segment_size=definition.stream_segment_size,
                time_to_live_millis=definition.time_to_live_millis,
                strategy_on_full=definition.strategy_on_full,
                persistence=definition.persistence,
                flush_on_write=definition.flush_on_write,
                export_definition=ExportDefinition(
                    **{kind: getattr(exports, kind) or [] for kind in exports.__struct_fields__}
                ),
            ),
            StorageStatus(self.log.oldest, self.log.end - 1, self.log.total_bytes),
            [
                ExportStatus(
                    progress.identifier,
                    progress.last_exported,
                    progress.last_time,
                    progress.error_message,
                    progress.exported_bytes,
                    progress.processed_messages,
                )
                for progress in self._stored.progress.values()
            ],
        )

    def statistics(self, activities: Mapping[str, ExportActivity], now: int) -> StreamStatistics:
        """The statistics of the stream; `activities` has its exports by identifier."""
        log = self.log
        return StreamStatistics(
            name=self.name,
            oldest_sequence_number=log.oldest,
            newest_sequence_number=log.end - 1,
            total_bytes=log.total_bytes,
            max_size=self.definition.max_size,
            segments=log.segment_count,
            waiting_reads=self.waiters.count_readers(),
            exports=[
                self._export_statistics(kind, export, activities[export.identifier], now)
                for kind, export in self.definition.export_definition.configs_by_kind()
            ],
            messages_appended=log.end - self._end_at_start,
            bytes_appended=log.appended_bytes,
            oldest_time=log.oldest_time,
            newest_time=log.newest_time,
            damaged_messages=log.damage.count,
            damage=next(map(str, log.damage.ranges()), ""),
        )

    def _export_statistics(
        self, kind: str, export: ExportConfig, activity: ExportActivity, now: int
    ) -> ExportStatistics:
        since = activity.waiting_since
        progress = self._stored.progress[export.identifier]
        return ExportStatistics(
            identifier=export.identifier,
            kind=kind,
            is_paused=bool(export.disabled),
            last_exported_sequence_number=progress.last_exported,
            messages_behind=messages_behind(
                export, progress.last_exported, self.log.oldest, self.log.end - 1
            ),
            last_export_time=progress.last_time,
            error_message=progress.error_message,
            exported_bytes=progress.exported_bytes,
            exported_messages=progress.processed_messages,
            skipped_messages=progress.skipped_messages,
            failures=activity.failures,
            retry_in_millis=activity.retry_in_millis,
            state=activity.state,
            # The clock may have been set back.
            seconds_behind=max(now - since, 0) / 1000 if since is not None else 0.0,
            is_leased=activity.is_leased,
            lost_messages=activity.lost_messages,
        )


class RetentionListener(Protocol):
    """Notified before messages are evicted or definitions change."""

    def before_drop(self, stream: Stream, end: int, are_expired: bool) -> None:
        """Called before the messages below `end` are evicted, by age or by size."""

    def before_change(
        self,
        stream: Stream,
        definition: MessageStreamDefinition | None,
        moves: Mapping[str, int],
    ) -> Callable[[], Callable[[], None] | None]:
        """Called when a new definition, or the deletion (None), is stored but not applied.

        `moves` has the next sequence numbers of moved exports, by identifier. The result is
        called after the change is applied. It may return a function that syncs data: a thread
        calls it before the change is answered.
        """


class Streams:
    """All streams by name.

    Changes of one stream are serialized; changes of different streams share commits.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        executor: Executor,
        note_flush: Callable[[float], None] = lambda _: None,
        definition_executor: Executor | None = None,
        shortages: Shortages | None = None,
    ) -> None:
        """`note_flush` is called by any thread with the duration of a flush in seconds.

        `definition_executor` stores definition changes; by default `executor` does.
        """
        self._store = store
        self._note_flush = note_flush
        self._shortages = shortages or Shortages()
        self._settings = settings
        self._executor = executor
        self._definition_executor = definition_executor or executor
        self._commits = DefinitionCommits(self._definition_executor, store.store_changes)
        self._pending_changes: set[asyncio.Task[None]] = set()
        self._pending_creations = 0
        self._name_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._status_stream_lock = asyncio.Lock()
        self._listener: RetentionListener | None = None
        self._streams = {
            name: self._serve(stored) for name, stored in sorted(store.streams.items())
        }
        # The number of creations, updates and deletions since the start, and its waiters.
        self.change_count = 0
        self.change_waiters = Waiters()

    def _serve(self, stored: StoredStream) -> Stream:
        stream = Stream(
            stored,
            self._executor,
            self._settings.reclaim_exported,
            self._note_flush,
            self._shortages,
        )
        stored.log.before_drop = partial(self._before_drop, stream)
        return stream

    def set_listener(self, listener: RetentionListener) -> None:
        self._listener = listener

    def _before_drop(self, stream: Stream, end: int, are_expired: bool) -> None:
        if self._listener is not None:
            self._listener.before_drop(stream, end, are_expired)

    def _before_change(
        self,
        stream: Stream | None,
        definition: MessageStreamDefinition | None = None,
        moves: Mapping[str, int] | None = None,
    ) -> Callable[[], Callable[[], None] | None]:
        if self._listener is None or stream is None:
            return lambda: None
        return self._listener.before_change(stream, definition, moves or {})

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._streams.values())

    def names(self) -> list[str]:
        return sorted({*self._streams, *self._store.unreadable})

    @property
    def unreadable(self) -> dict[str, str]:
        """Streams that cannot be served because their files are damaged, with the reason."""
        return {name: reason for name, (_, reason) in self._store.unreadable.items()}

    def find(self, name: str) -> Stream:
        try:
            return self._streams[name]
        except KeyError:
            pass
        if name in self._store.unreadable:
            raise MessageStoreReadErrorException(
                f"the message stream {name!r} cannot be read: {self._store.unreadable[name][1]}"
            )
        if not 1 <= len(name) <= 255 or not _NAME.match(name):
            raise InvalidRequestException(
                f"name is {name!r}: expected 1 to 255 letters, digits, spaces or any of _ , . -"
            )
        raise ResourceNotFoundException(f"the message stream {name!r} does not exist")

    async def create(self, definition: MessageStreamDefinition) -> None:
        await self._carry_out(self._create(definition))

    async def update(self, definition: MessageStreamDefinition) -> None:
        await self.edit(definition.name, lambda _: definition)

    async def edit(
        self, name: str, change: Callable[[MessageStreamDefinition], MessageStreamDefinition]
    ) -> None:
        """Updates a definition with the result of `change`, after pending changes of the stream."""
        await self._carry_out(self._edit(name, change))

    async def rewind(self, name: str, identifier: str, number: int) -> None:
        """Moves an export back or forward: the next message that it exports has this number."""
        await self._carry_out(self._rewind(name, identifier, number))

    async def delete(self, name: str) -> None:
        await self._carry_out(self._delete(name))

    async def _carry_out(self, change: Coroutine[Any, Any, None]) -> None:
        """Completes a change even if the caller is canceled."""
        task = asyncio.get_running_loop().create_task(change)
        self._pending_changes.add(task)
        task.add_done_callback(self._pending_changes.discard)
        await asyncio.shield(task)

    async def finish_changes(self) -> None:
        """Returns when no change is pending."""
        while self._pending_changes:
            await asyncio.wait(self._pending_changes)

    def _name_lock(self, name: str) -> asyncio.Lock:
        """The lock of a stream's pending change; further changes of the stream queue for it."""
        return self._name_locks.setdefault(name, asyncio.Lock())

    def _status_stream_lock_for(
        self, definition: MessageStreamDefinition
    ) -> AbstractAsyncContextManager[None]:
        # Two definitions that are valid separately may form a cycle of status streams.
        return self._status_stream_lock if names_status_stream(definition) else nullcontext()

    async def _create(self, definition: MessageStreamDefinition) -> None:
        name = definition.name
        async with self._name_lock(name), self._status_stream_lock_for(definition):
            if name in self._streams or name in self._store.unreadable:
                raise InvalidRequestException(ALREADY_EXISTS)
            self._check_count()
            self._check(definition)
            with self._translating(name):
                change = self._store.plan_creation(definition)
            self._pending_creations += 1
            try:
                await self._store_change(name, change)
            finally:
                self._pending_creations -= 1
            change.apply()
            self._streams[name] = self._serve(self._store.streams[name])
            logger.info("stream %r created", name)
            self._notify_change()

    async def _edit(
        self, name: str, edit: Callable[[MessageStreamDefinition], MessageStreamDefinition]
    ) -> None:
        async with self._name_lock(name):
            stream = self.find(name)
            definition = edit(stream.definition)
            async with self._status_stream_lock_for(definition):
                await self._update(stream, definition)

    async def _update(self, stream: Stream, definition: MessageStreamDefinition) -> None:
        self._check(definition)
        log = stream.log
        check_update(stream.definition, definition, log.total_bytes, log.end - 1)
        await self._redefine(stream, definition, find_moves(stream.definition, definition))

    async def _rewind(self, name: str, identifier: str, number: int) -> None:
        async with self._name_lock(name):
            stream = self.find(name)
            definition = rewound(stream.definition, identifier, number, stream.log.end)
            await self._redefine(stream, definition, {identifier: number})

    async def _redefine(
        self, stream: Stream, definition: MessageStreamDefinition, moves: Mapping[str, int]
    ) -> None:
        """Stores and applies a checked definition and moves of exports."""
        log = stream.log
        with self._translating(stream.name):
            change = self._store.plan_update(stream.stored, definition, moves)
        limits = log.limits
        if not limits.overwrites:
            # Appends obey the smaller of both sizes until the change is stored. A stream that
            # overwrites keeps the old size: it evicts nothing for a change that may fail.
            log.limits = limits._replace(max_size=min(limits.max_size, definition.max_size))
        try:
            await self._store_change(stream.name, change)
        except BaseException:
            log.limits = limits
            raise
        try:
            finish = self._before_change(stream, definition, moves)
        except BaseException:
            change.apply()
            self._notify_change()
            raise
        change.apply()
        logger.info("stream %r updated", stream.name)
        for identifier, number in moves.items():
            logger.info(
                "stream %r, export %r: continues with message %d",
                stream.name,
                identifier,
                number,
            )
        await self._finish_change(finish)

    async def _delete(self, name: str) -> None:
        async with self._name_lock(name):
            stream = self.find(name) if name not in self._store.unreadable else None
            change = self._store.plan_deletion(name)
            await self._store_change(name, change)
            try:
                finish = self._before_change(stream)
            except BaseException:
                change.apply()
                self._streams.pop(name, None)
                self._notify_change()
                raise
            change.apply()
            self._streams.pop(name, None)
            if stream is not None:
                stream.waiters.finish_all()
            logger.info("stream %r deleted", name)
            await self._finish_change(finish)

    async def _store_change(self, name: str, change: DefinitionChange) -> None:
        with self._translating(name):
            await self._commits.store(change)

    async def _finish_change(self, finish: Callable[[], Callable[[], None] | None]) -> None:
        """Notifies the listener and waiters after a change is applied."""
        try:
            sync = finish()
        finally:
            self._notify_change()
        if sync is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._definition_executor, sync)

    def _notify_change(self) -> None:
        self.change_count += 1
        self.change_waiters.wake(self.change_count)

    def finish_waits(self) -> None:
        """Ends all waits for messages and for definition changes."""
        for waiters in (self.change_waiters, *(stream.waiters for stream in self)):
            waiters.finish_all()

    def is_served(self, stream: Stream) -> bool:
        """Whether the stream still exists; another stream of the same name does not count."""
        return self._streams.get(stream.name) is stream

    def trim(self, now: int) -> None:
        for stream in self._streams.values():
            try:
                stream.log.trim(now)
            except (OSError, sqlite3.Error) as error:
                # Retried every second, but logged once.
                if stream.trim_error != str(error):
                    logger.error("cannot evict messages of stream %r: %s", stream.name, error)
                stream.trim_error = str(error)
            else:
                stream.trim_error = ""

    def _check_count(self) -> None:
        count = len(self._streams) + len(self._store.unreadable) + self._pending_creations
        limit = self._settings.max_streams
        if count >= limit:
            raise InvalidRequestException(
                f"the server has {count} message streams, and max_streams is {limit}: delete a "
                "stream, or raise max_streams (PENSTOCK_MAX_STREAMS)"
            )

    def _check(self, definition: MessageStreamDefinition) -> None:
        check_definition(
            definition,
            {name: stream.definition for name, stream in self._streams.items()},
            self._settings.exporter_s3_destination_multipart_upload_min_part_size_bytes,
        )

    @contextmanager
    def _translating(self, name: str) -> Iterator[None]:
        try:
            yield
        except _TRANSLATED_ERRORS as error:
            raise _translate(name, error, self._shortages) from None


_TRANSLATED_ERRORS = (
    StreamFullError,
    MessageTooLargeError,
    NoSpaceError,
    MemoryError,
    OSError,
    sqlite3.Error,
)


def _translate(name: str, error: Exception, shortages: Shortages) -> StreamManagerException:
    """Translates errors of the store for clients."""
    match error:
        case StreamFullError():
            return InvalidRequestException(
                f"the message stream {name!r} is full and rejects new data: the message does not "
                "fit its maxSize"
            )
        case MessageTooLargeError():
            return RequestPayloadTooLargeException(
                f"the messages of one append are larger than the maxSize of the message stream "
                f"{name!r}"
            )
        case NoSpaceError():
            # The store logs it once.
            return UnknownFailureException(f"{error}; nothing was stored")
        case MemoryError():
            return ServerOutOfMemoryException("the server has no memory left; nothing was stored")
        case OSError() if lacks_descriptors(error):
            return UnknownFailureException(shortages.note(f"stream {name!r}", error))
    logger.error("stream %r: %s", name, error)
    if is_disk_full(error) or (isinstance(error, OSError) and is_no_space(error)):
        return UnknownFailureException("the disk of the server is full; nothing was stored")
    return UnknownFailureException(f"the disk of the server failed: {error}")
