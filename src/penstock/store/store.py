"""The store: a root directory with a catalog and a directory for each stream.

    catalog.sqlite        everything but messages
    catalog.backup.sqlite a copy of the catalog
    lock                  held by the broker that serves this root
    streams/<id>/         the segments of a stream, and a copy of its definition

A stream that cannot be opened is listed as unreadable with the reason. Other streams are served.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import math
import os
import shutil
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from penstock.discovery import LOCK_FILE
from penstock.errors import StoreError
from penstock.model import MessageStreamDefinition, Persistence
from penstock.model.storage import SegmentSummary
from penstock.store.catalog import Catalog, NewerCatalogError, is_damage
from penstock.store.catalog_copy import (
    COPY_FILE,
    CatalogCopier,
    RebuiltCatalog,
    RemainingRows,
    describe_time,
    find_oldest,
    has_lost_commits,
    is_rebuilt,
    is_version_wrong,
    rebuild_catalog,
    use_rebuilt,
)
from penstock.store.definitions import (
    DamagedDefinitionError,
    decode_definition,
    encode_definition,
)
from penstock.store.files import Disk
from penstock.store.journal import Journal, JournalRecord, decode_records, journal_paths, replay
from penstock.store.known_damage import KnownDamage
from penstock.store.log import (
    DEFINITION_FILE,
    FileLog,
    Log,
    LogContext,
    MemoryLog,
)
from penstock.store.pool import lacks_descriptors
from penstock.store.progress_log import ProgressLog, read_progress, remove_progress
from penstock.store.record import data_path, index_path
from penstock.store.recovery import open_file_log, report_shortened
from penstock.store.reserve import (
    is_ample,
    is_full,
    keep_reserve,
    release_reserve,
    release_reserve_if_full,
)
from penstock.store.retention import Limits
from penstock.store.rows import (
    NO_UPLOADS,
    STREAM_ID,
    ExportProgress,
    StreamRow,
    UploadChange,
    UploadProgress,
)
from penstock.store.schema import CATALOG_FILE
from penstock.store.space import Space
from penstock.store.stored_stream import (
    Creation,
    DefinitionChange,
    Deletion,
    ProgressChange,
    StoredStream,
    Update,
    new_id,
)

logger = logging.getLogger(__name__)

_LOCK_ATTEMPTS = 10
_LOCK_PAUSE_SECONDS = 0.02
# Max time for the removal of deleted streams, which delays sealing and syncing.
_REMOVAL_SECONDS = 0.1


class Store:
    """All streams below one root. It holds the lock of the root until `close`."""

    def __init__(self, root: Path, disk: Disk | None = None, min_free_disk: int = 0) -> None:
        """Appends leave `min_free_disk` bytes of the disk free."""
        self._disk = disk or Disk()
        self.root = root
        self._streams_directory = root / "streams"
        self._disk.make_directory(self._streams_directory)
        self._lock = _lock_root(root)
        self._work_wanted = threading.Event()
        self.streams: dict[str, StoredStream] = {}
        # By name: the stream id and the reason.
        self.unreadable: dict[str, tuple[str, str]] = {}
        self._logged_errors: dict[tuple[str, str], str] = {}
        self._journal_is_needed = False
        self._checkpoint_error = ""
        self._abandoned_logs: deque[FileLog] = deque()
        self._abandoned_uploads: list[UploadProgress] = []
        self._is_catalog_rebuilt = False
        # Sealed segments whose file sizes have not been checked yet.
        self._unchecked_segments: deque[tuple[LogContext, str, list[SegmentSummary]]] = deque()
        try:
            has_released_reserve = release_reserve_if_full(self._disk, root)
            self.space = Space(self._disk, root, min_free_disk)
            self.catalog = self._open_catalog()
            if has_released_reserve:
                # Preallocates at once, before other programs use the free space.
                self._preallocate()
            self._copier = CatalogCopier(self.catalog, root, self._disk)
            self._finish_removals()
            self._adopt_unlisted()
            if self._is_catalog_rebuilt:
                self.catalog.remove_orphans()
            missing = self._replay_journal()
            self._journal = Journal(self._disk, root)
            self._recover_progress()
            self.progress_log = ProgressLog(self._disk, root)
            gaps = self.catalog.gaps()
            for row in self.catalog.streams():
                if row.name not in self.unreadable:
                    damage = KnownDamage(row.name, gaps=gaps.get(row.id, ()))
                    for numbers in missing.get(row.id, ()):
                        damage.add(numbers.start, numbers.stop, "missing in files and journal")
                    self._open_stream(row, damage)
            keep_reserve(self._disk, root)
            self.request_work()
        except BaseException:
            os.close(self._lock)
            raise

    # Definition changes: the event loop plans and applies them, a thread stores them

    def plan_creation(self, definition: MessageStreamDefinition) -> Creation:
        """Plans a new, empty stream. No stream of that name may exist."""
        if self.space.is_low and definition.persistence is Persistence.File:
            raise self.space.refuse(0)
        return Creation(self, definition)

    def plan_update(
        self,
        stream: StoredStream,
        definition: MessageStreamDefinition,
        moves: Mapping[str, int] | None = None,
    ) -> Update:
        """Plans an update. It deletes the progress of removed exports.

        `moves`: the next sequence numbers of moved exports, by identifier.
        """
        if Limits.of(definition).segment_size != stream.log.limits.segment_size:
            # A new segment size applies to new segments. If the change fails, the extra segment
            # is harmless.
            stream.log.begin_segment()
        return Update(self, stream, definition, moves or {})

    def plan_deletion(self, name: str) -> Deletion:
        """Plans the deletion of a stream, also of an unreadable one."""
        return Deletion(self, name)

    def store_changes(self, changes: Sequence[DefinitionChange]) -> list[Exception | None]:
        """Stores changes of different streams in one commit; returns an error or None for each.

        Called from one thread at a time.
        """
        errors = {change: _capture_error(change.prepare) for change in changes}
        for change in changes:
            errors[change] = errors[change] or _capture_error(change.sync)
        prepared = [change for change, error in errors.items() if error is None]
        errors.update(zip(prepared, self._commit_changes(prepared), strict=True))
        for change, error in errors.items():
            if error is not None:
                change.undo()
        self._copy_definitions(
            {
                change.stream_id: change.copied_definition
                for change, error in errors.items()
                if error is None and change.copied_definition is not None
            }
        )
        return list(errors.values())

    def _commit_changes(self, changes: Sequence[DefinitionChange]) -> list[Exception | None]:
        def commit() -> None:
            with self.catalog.transaction():
                for change in changes:
                    change.record()

        if not changes:
            return []
        # A creation uses space, so it must not use the reserve.
        frees = not any(isinstance(change, Creation) for change in changes)
        error = _capture_error(lambda: self.catalog.change(commit, uses_reserve=frees))
        if error is not None and len(changes) > 1:
            # Stores them one by one, so that a failing change affects no other.
            return [self._commit_changes([change])[0] for change in changes]
        return [error] * len(changes)

    def create(self, definition: MessageStreamDefinition) -> StoredStream:
        """Plans, stores and applies a creation."""
        creation = self.plan_creation(definition)
        self._store_and_apply(creation)
        return self.streams[definition.name]

    def update(self, stream: StoredStream, definition: MessageStreamDefinition) -> None:
        """Plans, stores and applies an update."""
        self._store_and_apply(self.plan_update(stream, definition))

    def delete(self, name: str) -> None:
        """Plans, stores and applies a deletion."""
        self._store_and_apply(self.plan_deletion(name))

    def _store_and_apply(self, change: DefinitionChange) -> None:
        (error,) = self.store_changes([change])
        if error is not None:
            raise error
        change.apply()

    def log_context(
        self, stream_id: str, name: str, damage: KnownDamage | None = None
    ) -> LogContext:
        return LogContext(
            self._disk,
            self._streams_directory / stream_id,
            self.catalog,
            stream_id,
            self._journal,
            self.space,
            self.request_work,
            damage or KnownDamage(name),
        )

    def abandon(self, log: FileLog) -> None:
        """Closes the log of a deleted stream in the background."""
        self._abandoned_logs.append(log)
        self.request_work()

    def abandon_uploads(self, uploads: Sequence[UploadProgress]) -> None:
        """Records in the background that uploads must be aborted.

        If this fails, the next start abandons them again.
        """
        self._abandoned_uploads.extend(uploads)
        self.request_work()

    def commit_progress(self, progress: dict[str, list[ExportProgress]]) -> None:
        """Stores and applies export progress, by stream name, in one transaction."""
        change = self.change_progress(progress)
        change.store()
        change.apply()

    def change_progress(
        self, progress: dict[str, list[ExportProgress]], uploads: UploadChange = NO_UPLOADS
    ) -> ProgressChange:
        """Plans a change of progress. `store` may run in a thread, `apply` in the event loop."""
        # With the ids of the current exports: the change must not apply to later ones.
        found = [
            (stream, export._replace(export_id=current.export_id))
            for name, exports in progress.items()
            if (stream := self.streams.get(name)) is not None
            for export in exports
            if (current := stream.progress.get(export.identifier)) is not None
        ]
        return ProgressChange(self.catalog, found, [uploads])

    def uploads(self) -> list[UploadProgress]:
        """Unfinished uploads. Uploads of removed exports are marked as abandoned."""
        current_ids = {
            stream.progress[export.identifier].export_id
            for stream in self.streams.values()
            for export in stream.definition.export_definition.s3_task_executor or ()
        }
        # An unreadable stream may be readable after the next start.
        for stream_id, _ in self.unreadable.values():
            progress = self.catalog.progress(stream_id)
            current_ids |= {export.export_id for export in progress.values()}
        return [
            upload
            if upload.export_id in current_ids
            else msgspec.structs.replace(upload, is_abandoned=True)
            for upload in self.catalog.uploads()
        ]

    def request_work(self) -> None:
        self._work_wanted.set()

    def wait_for_work(self, timeout: float) -> bool:
        """Waits until there is work for `work`. Called from the background thread."""
        wanted = self._work_wanted.wait(timeout)
        self._work_wanted.clear()
        return wanted

    def work(self) -> None:
        """Seals and removes segments, and does other work that must not delay the event loop.

        Called from the background thread.
        """
        for stream in [each for each in list(self.streams.values()) if each.log.has_work]:
            # A job that fails stays first and is retried.
            self._try_on_stream(stream, "cannot seal or remove segments", stream.log.work)
        self._record_abandoned_uploads()
        self._close_abandoned_logs()
        try:
            self._finish_removals(time.monotonic() + _REMOVAL_SECONDS)
        except sqlite3.Error as error:
            logger.error("cannot finish the removal of deleted streams: %s", error)
        self._copier.copy_if_due()
        while self._unchecked_segments:
            report_shortened(*self._unchecked_segments.popleft())

    def _record_abandoned_uploads(self) -> None:
        uploads, self._abandoned_uploads = self._abandoned_uploads, []
        try:
            if uploads:
                self.catalog.abandon_uploads(uploads)
        except sqlite3.Error as error:
            logger.error("cannot record abandoned uploads: %s", error)

    def _close_abandoned_logs(self) -> None:
        while self._abandoned_logs:
            self._abandoned_logs.popleft().abandon()

    def maintain_space(self) -> None:
        """Samples the disk and preallocates space for a full disk. Called in the background."""
        self.space.sample()
        if is_ample(self.space.free):
            keep_reserve(self._disk, self.root)
            self._preallocate()

    def _preallocate(self) -> None:
        # Retried every second.
        with contextlib.suppress(OSError, sqlite3.Error):
            self.catalog.preallocate()

    def sync(self) -> None:
        """Syncs everything appended so far. Called in the background."""
        is_draining = self._journal.drain()
        checkpoints: list[tuple[FileLog, SegmentSummary]] = []
        is_synced = True
        for stream in list(self.streams.values()):
            log = stream.log
            if not isinstance(log, FileLog) or not log.has_unsynced:
                continue
            checkpoint = functools.partial(_add_checkpoint, log, checkpoints)
            error = self._try_on_stream(stream, "cannot sync", checkpoint)
            if error is None:
                continue
            is_synced = False
            if not lacks_descriptors(error):
                # After a failed sync, the system may drop the data and report success for the next
                # sync. So the journal stays, and the next start replays it.
                self._journal_is_needed = True
        if is_draining and is_synced and not self._journal_is_needed:
            self._journal.drained()
        self._store_checkpoints(checkpoints)

    def _store_checkpoints(self, checkpoints: Sequence[tuple[FileLog, SegmentSummary]]) -> None:
        """Stores the checkpoints of all streams in one transaction."""
        if not checkpoints:
            return
        try:
            self.catalog.set_checkpoints([(log.stream_id, summary) for log, summary in checkpoints])
        except sqlite3.Error as error:
            # On a full disk this fails every second, so it is logged once.
            if self._checkpoint_error != str(error):
                self._checkpoint_error = str(error)
                logger.error("cannot store checkpoints: %s", error)
            return
        self._checkpoint_error = ""
        for log, summary in checkpoints:
            log.checkpointed(summary)

    def _try_on_stream(
        self, stream: StoredStream, failure: str, work: Callable[[], None]
    ) -> Exception | None:
        try:
            work()
        except (OSError, sqlite3.Error) as error:
            # On a full disk this fails every second, so it is logged once.
            if self._logged_errors.get((stream.id, failure)) != str(error):
                self._logged_errors[stream.id, failure] = str(error)
                logger.error("stream %r: %s: %s", stream.definition.name, failure, error)
            return error
        if self._logged_errors.pop((stream.id, failure), None):
            logger.info("stream %r: the disk works again", stream.definition.name)
        return None

    def close(self) -> None:
        """Seals, syncs and checkpoints everything, so that the next start recovers nothing."""
        checkpoints = []
        is_synced = True
        self._close_abandoned_logs()
        self._record_abandoned_uploads()
        try:
            self._close_memory_logs()
        except sqlite3.Error as error:
            logger.error("cannot close memory streams: %s", error)
        for stream in self.streams.values():
            if not isinstance(stream.log, FileLog):
                continue
            try:
                if summary := stream.log.finish():
                    checkpoints.append((stream.id, summary))
                stream.log.close()
            except (OSError, sqlite3.Error) as error:
                is_synced = False
                logger.error("cannot close stream %r: %s", stream.definition.name, error)
        try:
            self.catalog.set_checkpoints(checkpoints)
        except sqlite3.Error as error:
            logger.error("cannot store checkpoints: %s", error)
        if is_synced and not self._journal_is_needed:
            self._journal.close()
        self._copier.copy()
        self.catalog.close()
        os.close(self._lock)

    def _close_memory_logs(self) -> None:
        with self.catalog.transaction():
            for stream in self.streams.values():
                if isinstance(stream.log, MemoryLog):
                    stream.log.close()

    def _recover_progress(self) -> None:
        """Moves the logged progress of a killed broker to the catalog."""
        advanced: dict[tuple[str, str], ExportProgress] = {}
        for stream_id, logged in read_progress(self._disk, self.root):
            key = stream_id, logged.identifier
            known = advanced.get(key) or self.catalog.progress(stream_id).get(logged.identifier)
            if known is None or known.export_id != logged.export_id:
                continue
            # After a power cut, the catalog may be ahead of the log.
            if (known.last_exported, known.processed_messages) < (
                logged.last_exported,
                logged.processed_messages,
            ):
                advanced[key] = logged
        try:
            if advanced:
                self.catalog.commit_progress([(key[0], each) for key, each in advanced.items()])
            remove_progress(self._disk, self.root)
        except (OSError, sqlite3.Error) as error:
            logger.error("cannot store the logged progress of exports: %s", error)

    def _replay_journal(self) -> dict[str, list[range]]:
        """Replays the journal before the segments are read.

        Returns, by stream id, the messages that neither the files nor the journal have.
        """
        missing: dict[str, list[range]] = {}
        paths = journal_paths(self.root)
        records: dict[str, list[JournalRecord]] = {}
        for path in paths:
            for record in decode_records(path.read_bytes()):
                records.setdefault(record.stream_id, []).append(record)
        for row in self.catalog.streams() if records else ():
            # Sealed segments are synced, and segments below `oldest` were removed.
            sealed = {segment.first for segment in self.catalog.segments(row.id)}
            wanted = [
                record
                for record in records.get(row.id, ())
                if record.segment not in sealed and record.segment >= row.oldest
            ]
            directory = self._streams_directory / row.id
            try:
                if wanted and directory.is_dir():
                    checkpoint = self.catalog.checkpoint(row.id)
                    missing[row.id] = replay(self._disk, directory, wanted, checkpoint)
            except OSError as error:
                self._mark_unreadable(row, error)
        # While a stream is unreadable, the journal stays until it can be replayed.
        if paths and not self.unreadable:
            for path in paths:
                self._disk.remove(path)
            self._disk.sync_directory(self.root)
        return missing

    def _open_catalog(self) -> Catalog:
        path = self.root / CATALOG_FILE
        try:
            self._is_catalog_rebuilt = is_rebuilt(self.root)
            if self._is_catalog_rebuilt:
                logger.error("the catalog is damaged: replacing it with the rebuilt catalog")
                use_rebuilt(self.root, self._disk)
            # SQLite would treat an empty file as a new catalog.
            is_empty = path.exists() and path.stat().st_size == 0
            has_copy = (self.root / COPY_FILE).exists()
            if not has_copy or (path.exists() and not is_empty):
                try:
                    # Checked before SQLite removes a write-ahead log that it considers complete.
                    if not has_lost_commits(self.root):
                        return Catalog(path, self._release_reserve)
                    problem = "the catalog has lost its last changes"
                except sqlite3.Error as error:
                    if not is_damage(error):
                        raise
                    problem = f"the catalog is damaged ({error})"
                except NewerCatalogError:
                    if not is_version_wrong(self.root):
                        raise
                    problem = "the catalog is damaged (its version number is wrong)"
            else:
                problem = f"{path} is {'empty' if is_empty else 'missing'}"
            rebuilt = rebuild_catalog(self.root, self._disk, self._keep_damaged_rows)
            # Logged first: after a crash, the next start finds an intact catalog and logs nothing.
            _report_rebuilt(problem, rebuilt)
            use_rebuilt(self.root, self._disk)
            catalog = Catalog(path, self._release_reserve)
        except (OSError, sqlite3.Error) as error:
            hint = "; the disk is full: free some space" if is_full(self._disk, self.root) else ""
            raise StoreError(f"{path} cannot be opened: {error}{hint}") from None
        self._is_catalog_rebuilt = True
        return catalog

    def _release_reserve(self) -> bool:
        return release_reserve(self._disk, self.root)

    def _finish_removals(self, deadline: float = math.inf) -> None:
        """Removes the files of deleted streams until the deadline; the next call removes the rest.

        So the removal of a large stream does not delay sealing and syncing of others.
        """
        removed = []
        directories = self.catalog.removed_directories()
        if not directories:
            return
        # A stored deletion may not be applied yet. Until then, clients read the stream.
        used = {stream.id for stream in list(self.streams.values())}
        for stream_id in directories:
            if not STREAM_ID.fullmatch(stream_id) or self.catalog.has_stream(stream_id):
                # A removed stream cannot have had this id: the row is damaged.
                logger.error("%r is not the id of a deleted stream: nothing is removed", stream_id)
                removed.append(stream_id)
                continue
            if stream_id in used:
                continue
            if _remove_directory(self._streams_directory / stream_id, deadline):
                removed.append(stream_id)
            elif time.monotonic() >= deadline:
                self.request_work()
                break
        if removed:
            try:
                # Otherwise a power cut could restore the directory, and with it the stream.
                self._disk.sync_directory(self._streams_directory)
            except OSError as error:
                logger.error("cannot sync the removal of stream directories: %s", error)
                return
            self.catalog.forget_directories(removed)

    def _adopt_unlisted(self) -> None:
        """Adds streams that the catalog does not list, if their directory has a definition."""
        rows = self.catalog.streams()
        known_names = {row.name for row in rows}
        known_ids = {row.id for row in rows} | set(self.catalog.removed_directories())
        for directory in sorted(self._streams_directory.iterdir()):
            if directory.name in known_ids or not directory.is_dir():
                continue
            try:
                definition = self._read_definition(directory)
            except (OSError, DamagedDefinitionError):
                if _is_unfinished_creation(directory):
                    # The creation was not acknowledged.
                    shutil.rmtree(directory, ignore_errors=True)
                else:
                    logger.error("%s is not in the catalog and has no definition", directory)
                continue
            if definition.name in known_names:
                logger.error(
                    "%s is not in the catalog and is ignored: another stream is named %r",
                    directory,
                    definition.name,
                )
                continue
            adopted = directory
            if not STREAM_ID.fullmatch(directory.name):
                # The directory was renamed. Stream ids must have the format that the journal needs.
                adopted = directory.rename(self._streams_directory / new_id())
            oldest = find_oldest(adopted, 0)
            self.catalog.add_stream(
                StreamRow(adopted.name, definition.name, encode_definition(definition), oldest, 0)
            )
            known_names.add(definition.name)
            logger.error(
                "stream %r was not in the catalog and is restored from %s; its export progress "
                "is lost",
                definition.name,
                adopted,
            )

    def _keep_damaged_rows(self, catalog: Catalog, remaining: RemainingRows) -> None:
        """Keeps streams that have lost their definition in the catalog and beside their segments.

        They are unreadable until they are deleted or their definition is restored.
        """
        rows = catalog.streams()
        names, ids = {row.name for row in rows}, {row.id for row in rows}
        for stream_id, name in remaining.damaged_streams:
            directory = self._streams_directory / stream_id
            if not STREAM_ID.fullmatch(stream_id) or stream_id in ids or not directory.is_dir():
                continue
            try:
                self._read_definition(directory)
            except (OSError, DamagedDefinitionError):
                free_name = name if name.isprintable() and name not in names else stream_id
                oldest = find_oldest(directory, 0)
                catalog.add_stream(StreamRow(stream_id, free_name, b"", oldest, 0))

    def _open_stream(self, row: StreamRow, damage: KnownDamage) -> None:
        directory = self._streams_directory / row.id
        try:
            try:
                definition = decode_definition(row.definition)
            except DamagedDefinitionError as error:
                definition = self._read_definition(directory)
                logger.error(
                    "stream %r: the definition in the catalog is damaged (%s); using the one in %s",
                    row.name,
                    error,
                    directory / DEFINITION_FILE,
                )
            progress = self.catalog.progress(row.id)
            log: Log
            if definition.persistence is Persistence.Memory:
                log = MemoryLog(
                    Limits.of(definition),
                    self.catalog,
                    row.id,
                    self.request_work,
                    first=row.reserved,
                )
                # The background thread reserves numbers before the first append needs them.
                self.request_work()
            else:
                if not directory.is_dir():
                    logger.error("stream %r: its directory %s is missing", row.name, directory)
                exported = max(
                    (export.last_exported + 1 for export in progress.values()), default=0
                )
                context = self.log_context(row.id, row.name, damage)
                log = open_file_log(
                    context,
                    Limits.of(definition),
                    name=row.name,
                    oldest=row.oldest,
                    lowest_end=max(row.reserved, exported),
                )
                sealed = [segment.summary() for segment in log.segments()[:-1]]
                self._unchecked_segments.append((context, row.name, sealed))
                log.journals = definition.flush_on_write
                if not (directory / DEFINITION_FILE).exists():
                    self._copy_definitions({row.id: definition})
        except (OSError, DamagedDefinitionError, sqlite3.Error) as error:
            self._mark_unreadable(row, error)
            return
        self.streams[row.name] = StoredStream(row.id, definition, log, progress)

    def _mark_unreadable(self, row: StreamRow, error: Exception) -> None:
        if lacks_descriptors(error):
            # The stream is not damaged, so the start fails instead of marking it unreadable.
            raise StoreError(
                f"stream {row.name!r} cannot be opened: {error}; raise the limit of open files"
            )
        logger.error("stream %r cannot be opened: %s", row.name, error)
        self.unreadable[row.name] = (row.id, str(error))

    def _copy_definitions(self, definitions: Mapping[str, MessageStreamDefinition]) -> None:
        """Writes copies of definitions, by stream id, beside the segments."""
        copies = {
            self._streams_directory / stream_id / DEFINITION_FILE: msgspec.json.format(
                encode_definition(definition)
            )
            for stream_id, definition in definitions.items()
        }
        try:
            self._disk.replace_all(copies)
        except OSError as error:
            if len(definitions) > 1:
                for stream_id, definition in definitions.items():
                    self._copy_definitions({stream_id: definition})
                return
            # The catalog has the definition. The next start writes the copy again.
            logger.warning("cannot write %s: %s", *copies, error)

    def _read_definition(self, directory: Path) -> MessageStreamDefinition:
        return decode_definition((directory / DEFINITION_FILE).read_bytes())


def _report_rebuilt(problem: str, rebuilt: RebuiltCatalog) -> None:
    sources = "the copy"
    if rebuilt.moved is not None:
        problem += f" and was moved to {rebuilt.moved}"
        sources = "its intact rows and from the copy"
    if rebuilt.rows.copy_time is None:
        logger.error(
            "%s: it was rebuilt from its intact rows; missing streams are restored from their "
            "directories",
            problem,
        )
    else:
        logger.error(
            "%s: it was rebuilt from %s of %s. Exports may repeat messages that they have sent "
            "since then; tokens that were revoked since then are valid again%s",
            problem,
            sources,
            describe_time(rebuilt.rows.copy_time),
            ". The copy is damaged as well: some rows are lost"
            if rebuilt.rows.is_copy_damaged
            else "",
        )


def _is_unfinished_creation(directory: Path) -> bool:
    """Whether a directory has only the empty first segment of a stream."""
    names = {data_path(directory, 0), index_path(directory, 0)}
    return all(
        path in names and path.is_file() and path.stat().st_size == 0
        for path in directory.iterdir()
    )


def _add_checkpoint(log: FileLog, checkpoints: list[tuple[FileLog, SegmentSummary]]) -> None:
    summary = log.checkpoint()
    if summary is not None:
        checkpoints.append((log, summary))


def _capture_error(step: Callable[[], None]) -> Exception | None:
    try:
        step()
    except Exception as error:  # noqa: BLE001 - the caller of the change gets it
        return error
    return None


def _remove_directory(directory: Path, deadline: float) -> bool:
    """Removes a directory and its files until the deadline; returns whether all are removed."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if time.monotonic() >= deadline:
                return False
            if not entry.is_dir(follow_symlinks=False):
                Path(entry).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


def _lock_root(root: Path) -> int:
    descriptor = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(_LOCK_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            # A program that checks for a running broker holds the lock briefly.
            time.sleep(_LOCK_PAUSE_SECONDS)
    else:
        owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise StoreError(
            f"another broker (process {owner or 'unknown'}) serves {root}: "
            "stop it, or choose another root with --root"
        )
    # The process id is informational, so an error on a full disk is ignored.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
