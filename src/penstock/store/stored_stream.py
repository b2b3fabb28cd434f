"""A stored stream, and changes of its definition and of its export progress."""

from __future__ import annotations

import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from penstock.model import MessageStreamDefinition, Persistence
from penstock.store.catalog import Catalog
from penstock.store.definitions import encode_definition
from penstock.store.log import (
    RESERVED_AT_ONCE,
    FileLog,
    Log,
    LogContext,
    MemoryLog,
    create_file_log,
)
from penstock.store.retention import Limits
from penstock.store.rows import ExportProgress, StreamRow, UploadChange


def new_id() -> str:
    return uuid.uuid4().hex[:16]


def progress_of(
    definition: MessageStreamDefinition, known: Mapping[str, ExportProgress]
) -> dict[str, ExportProgress]:
    """The progress of each export of a definition. A new export starts at the beginning."""
    return {
        name: known.get(name) or ExportProgress(name, export_id=new_id())
        for name in (export.identifier for export in definition.exports())
    }


class StoredStream:
    """A stored stream: its definition, its log, and the progress of its exports."""

    def __init__(
        self,
        stream_id: str,
        definition: MessageStreamDefinition,
        log: Log,
        progress: dict[str, ExportProgress],
    ) -> None:
        self.id = stream_id
        self.definition = definition
        self.log = log
        self.progress = progress_of(definition, progress)

    def exported_end(self) -> int:
        """The end of the messages that all enabled exports have exported; 0 without exports."""
        return min(
            (
                max(
                    self.progress[export.identifier].last_exported + 1,
                    getattr(export, "start_sequence_number", None) or 0,
                )
                for export in self.definition.exports()
                if not export.disabled
            ),
            default=0,
        )


class DefinitionStore(Protocol):
    """The part of the store that definition changes use."""

    catalog: Catalog
    streams: dict[str, StoredStream]
    unreadable: dict[str, tuple[str, str]]

    def log_context(self, stream_id: str, name: str) -> LogContext: ...
    def abandon(self, log: FileLog) -> None: ...
    def request_work(self) -> None: ...


class DefinitionChange(ABC):
    """The creation, update or deletion of one stream.

    The event loop plans and applies it. A thread runs the other steps, which wait for the disk.
    Until `apply`, reads and appends use the old definition. A stream has at most one change at a
    time.
    """

    stream_id: str
    # The definition to copy beside the segments once the change is stored.
    copied_definition: MessageStreamDefinition | None = None

    def prepare(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Creates the files that the catalog will list."""

    def sync(self) -> None:  # noqa: B027
        """Syncs the prepared files.

        All changes of a commit are prepared before the first is synced. So a journaling file
        system writes them together.
        """

    @abstractmethod
    def record(self) -> None:
        """Changes the catalog, inside a transaction."""

    def undo(self) -> None:  # noqa: B027
        """Removes the prepared files if the change could not be stored."""

    @abstractmethod
    def apply(self) -> None:
        """Makes a stored change effective."""


class Creation(DefinitionChange):
    def __init__(self, store: DefinitionStore, definition: MessageStreamDefinition) -> None:
        self._store = store
        self._definition = definition
        self.stream_id = new_id()
        self._progress = progress_of(definition, {})
        self._log: Log | None = None
        if definition.persistence is not Persistence.Memory:
            self.copied_definition = definition

    def prepare(self) -> None:
        limits = Limits.of(self._definition)
        context = self._store.log_context(self.stream_id, self._definition.name)
        if self._definition.persistence is Persistence.Memory:
            self._log = MemoryLog(
                limits,
                context.catalog,
                self.stream_id,
                context.request_work,
                reserved=RESERVED_AT_ONCE,
            )
        else:
            self._log = create_file_log(context, limits)
            self._log.journals = self._definition.flush_on_write

    def sync(self) -> None:
        if isinstance(self._log, FileLog):
            # From now on, a missing active segment is damage.
            context = self._store.log_context(self.stream_id, self._definition.name)
            context.disk.sync_directory(context.directory)
            context.disk.sync_directory(context.directory.parent)

    def record(self) -> None:
        reserved = RESERVED_AT_ONCE if isinstance(self._log, MemoryLog) else 0
        definition = self._definition
        row = StreamRow(self.stream_id, definition.name, encode_definition(definition), 0, reserved)
        self._store.catalog.add_stream(row, self._progress.values())

    def undo(self) -> None:
        if isinstance(self._log, FileLog):
            self._log.abandon()
        if self._definition.persistence is not Persistence.Memory:
            shutil.rmtree(
                self._store.log_context(self.stream_id, self._definition.name).directory,
                ignore_errors=True,
            )

    def apply(self) -> None:
        assert self._log is not None
        self._store.streams[self._definition.name] = StoredStream(
            self.stream_id, self._definition, self._log, self._progress
        )


class Update(DefinitionChange):
    def __init__(
        self,
        store: DefinitionStore,
        stream: StoredStream,
        definition: MessageStreamDefinition,
        moves: Mapping[str, int],
    ) -> None:
        """`moves`: the next sequence numbers of moved exports, by identifier."""
        self._store = store
        self._stream = stream
        self._definition = definition
        self.stream_id = stream.id
        if isinstance(stream.log, FileLog):
            self.copied_definition = definition
        self._limits = Limits.of(definition)
        self._kept = [
            stream.progress[export.identifier]
            for export in definition.exports()
            if export.identifier in stream.progress
        ]
        self._progress = progress_of(definition, stream.progress)
        self._moved = {
            each.identifier: each.moved_to(moves[each.identifier], new_id())
            for each in self._kept
            if each.identifier in moves
        }

    def record(self) -> None:
        kept = {each.identifier for each in self._kept}
        added = [each for name, each in self._progress.items() if name not in kept]
        moved = list(self._moved.values())
        encoded = encode_definition(self._definition)
        self._store.catalog.update_stream(self.stream_id, encoded, self._kept, added, moved)

    def apply(self) -> None:
        stream, log = self._stream, self._stream.log
        log.limits = self._limits
        stream.definition = self._definition
        # Exports may have made progress since the change was planned.
        stream.progress = {
            name: stream.progress.get(name, planned) for name, planned in self._progress.items()
        }
        for name, moved in self._moved.items():
            current = stream.progress[name]
            stream.progress[name] = current.moved_to(moved.last_exported + 1, moved.export_id)
        if isinstance(log, FileLog):
            if self._definition.flush_on_write and not log.journals:
                # The journal has no earlier appends, so the next flush must sync them.
                log.needs_sync = True
            log.journals = self._definition.flush_on_write


class Deletion(DefinitionChange):
    def __init__(self, store: DefinitionStore, name: str) -> None:
        self._store = store
        self._name = name
        self.stream_id = (
            store.unreadable[name][0] if name in store.unreadable else store.streams[name].id
        )

    def record(self) -> None:
        self._store.catalog.remove_stream(self.stream_id)

    def apply(self) -> None:
        if self._name in self._store.unreadable:
            del self._store.unreadable[self._name]
        else:
            log = self._store.streams.pop(self._name).log
            if isinstance(log, FileLog):
                self._store.abandon(log)
        self._store.request_work()


class ProgressChange:
    """A change of the progress of exports and of their uploads."""

    def __init__(
        self,
        catalog: Catalog,
        progress: Sequence[tuple[StoredStream, ExportProgress]],
        uploads: Sequence[UploadChange] = (),
    ) -> None:
        self.catalog = catalog
        self.progress = progress
        # In the order of the changes.
        self.uploads = uploads

    @classmethod
    def merge(cls, changes: Sequence[Self]) -> Self:
        """Merges changes into a single one with the same effect."""
        # The last change of each export counts.
        latest = {
            (stream.id, export.identifier, export.export_id): (stream, export)
            for change in changes
            for stream, export in change.progress
        }
        uploads = [each for change in changes for each in change.uploads]
        return cls(changes[0].catalog, list(latest.values()), uploads)

    def rows(self) -> list[tuple[str, ExportProgress]]:
        """The progress of each export, with the id of its stream."""
        return [(stream.id, export) for stream, export in self.progress]

    def store(self) -> None:
        """Stores the change in one transaction. Called from any thread."""
        self.catalog.commit_progress(self.rows(), *self.uploads)

    def apply(self) -> None:
        """Updates the progress of exports that still exist and were not moved."""
        for stream, export in self.progress:
            current = stream.progress.get(export.identifier)
            if current is not None and current.export_id == export.export_id:
                stream.progress[export.identifier] = export
