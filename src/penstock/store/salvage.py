"""Salvage: copies all readable data of a damaged root to a new root.

Streams keep their names, definitions and sequence numbers. If the catalog is damaged, all readable
rows of it and of its copy are used, as at a start of the broker (see `catalog_copy`).

A damaged message keeps its number. In a segment with intact messages it gets an index entry without
a payload, which reads as damaged. A segment without an intact message is left out. The new catalog
lists these numbers as gaps, so that a verification of the new root does not report them as damage.
These numbers never get a message, so gaps cannot hide later damage.

The new root is written to `salvage.partial` inside the target. Its files are moved to the target at
the end, so that a failed salvage leaves no partial root.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from penstock.discovery import TOKEN_FILE, is_served
from penstock.errors import StoreError
from penstock.model import MessageStreamDefinition
from penstock.model.storage import SegmentSummary
from penstock.store.catalog import Catalog, NewerCatalogError, is_damage
from penstock.store.catalog_copy import (
    COPY_FILE,
    describe_time,
    find_rebuilt,
    has_lost_commits,
    is_version_wrong,
    read_remaining_rows,
    reconcile_rows,
)
from penstock.store.catalog_reader import copy_catalog_files
from penstock.store.definitions import (
    DamagedDefinitionError,
    decode_definition,
    encode_definition,
)
from penstock.store.record import ENTRY, crc32, data_path, index_path
from penstock.store.rows import StreamRow
from penstock.store.schema import CATALOG_FILE
from penstock.store.segment_check import (
    CheckedSpan,
    Meter,
    SegmentSource,
    ignore_bytes,
    raise_unless_damage,
)
from penstock.store.verification import (
    DamagedFile,
    SegmentCheck,
    StreamCheck,
    Verification,
    VerificationReport,
)

_PIECE_BYTES = 1 << 20
_MAX_NUMBER = (1 << 63) - 1
_ENTRIES_A_PIECE = 4096
# The page size of SQLite.
_PAGE_BYTES = 4096
# The directory inside the target for the unfinished new root.
_PARTIAL = "salvage.partial"
# Tables whose rows are in no other file.
_COUNTED_TABLES = ("stream", "export_progress", "token", "upload")


class Salvage(msgspec.Struct, rename="camel", kw_only=True):
    """The result of a salvage: counts of copied data, and the report about the old root."""

    report: VerificationReport
    streams: int = 0
    messages: int = 0
    bytes: int = 0
    notes: list[DamagedFile] = []


def salvage(
    root: Path, target: Path, *, patterns: Sequence[str] = (), meter: Meter = ignore_bytes
) -> Salvage:
    """Copies the streams that match `patterns`, or all; raises StoreError for an invalid target."""
    if is_served(root):
        raise StoreError(f"a broker serves {root}: stop it before you copy from it")
    if target.exists() and not _is_free(target):
        raise StoreError(f"{target} is not empty: choose a new directory")
    if target.resolve().is_relative_to(root.resolve()):
        raise StoreError(f"{target} is below {root}: choose a directory elsewhere")
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        stage = Path(name)
        verification = Verification(root, patterns=patterns, meter=meter, catalog_root=stage)
        result = Salvage(report=verification.report)
        _stage_catalog(root, stage, result)
        with _partial_root(target) as partial:
            copy_catalog_files(stage, partial)
            copy = _StreamCopier(root, partial, result)
            try:
                for check in verification.streams():
                    copy.add(check)
                copy.finish()
            finally:
                copy.close()
            if result.streams or not patterns:
                _publish(partial, target)
    if is_served(root):
        result.notes.append(DamagedFile(str(root), "a broker started during the copy: copy again"))
    return result


def _is_free(target: Path) -> bool:
    """Whether the target is empty, apart from leftovers of a killed salvage."""
    return target.is_dir() and all(path.name == _PARTIAL for path in target.iterdir())


@contextmanager
def _partial_root(target: Path) -> Iterator[Path]:
    """A temporary directory inside the target, which may be a mount point."""
    is_new = not target.exists()
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = target / _PARTIAL
    try:
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "streams").mkdir(mode=0o700, parents=True)
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if is_new:
            # This fails if the salvage succeeded, because the target is not empty then.
            with suppress(OSError):
                target.rmdir()


def _publish(partial: Path, target: Path) -> None:
    target.chmod(0o700)
    # The catalog last: after an interruption, the streams can be read without it.
    for path in sorted(partial.iterdir(), key=lambda path: path.name == CATALOG_FILE):
        path.rename(target / path.name)
    _sync_directory(target)


def _stage_catalog(root: Path, stage: Path, result: Salvage) -> None:
    """Creates an intact catalog in `stage` from all readable rows of the root."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        # SQLite may write to a database that it reads.
        copies = Path(name)
        rebuilt = find_rebuilt(root)
        _copy_readable(rebuilt or root / CATALOG_FILE, copies / CATALOG_FILE)
        for each in (COPY_FILE,) if rebuilt else (f"{CATALOG_FILE}-wal", COPY_FILE):
            _copy_readable(root / each, copies / each)
        problem = _stage_whole(copies, stage)
        if not problem:
            return
        result.report.problems.append(DamagedFile(CATALOG_FILE, problem))
        for path in stage.iterdir():
            path.unlink()
        rows = read_remaining_rows(copies)
    catalog = Catalog(stage / CATALOG_FILE)
    try:
        catalog.restore_rows(rows.tables)
        reconcile_rows(catalog, root, rows.stale_streams)
    finally:
        catalog.close()
    counts = ", ".join(f"{len(rows.tables[table])} of {table}" for table in _COUNTED_TABLES)
    result.notes.append(DamagedFile(CATALOG_FILE, f"readable rows: {counts}"))
    if rows.copy_time is not None:
        made = describe_time(rows.copy_time)
        result.notes.append(DamagedFile(COPY_FILE, f"source of missing rows, made {made}"))


def _stage_whole(copies: Path, stage: Path) -> str:
    """Copies an intact catalog to `stage`; returns the problem if it is damaged, else ''."""
    path = copies / CATALOG_FILE
    if not path.exists():
        return "is missing or cannot be read"
    if path.stat().st_size == 0:
        # SQLite would treat it as a new database.
        return "is empty"
    if has_lost_commits(copies):
        return "has lost its last changes: its write-ahead log is damaged"
    try:
        Catalog(copy_catalog_files(copies, stage)).close()
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        return f"is damaged: {error}"
    except NewerCatalogError:
        if not is_version_wrong(copies):
            raise
        return "is damaged: its version number is wrong"
    return ""


def _copy_readable(source: Path, target: Path) -> None:
    """Copies a file, with zeros for unreadable pages; does nothing if it is missing."""
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise_unless_damage(error)
        return
    try:
        size = os.fstat(descriptor).st_size
        with target.open("xb") as file:
            for position in range(0, size, _PAGE_BYTES):
                page = b""
                try:
                    page = os.pread(descriptor, _PAGE_BYTES, position)
                except OSError as error:
                    raise_unless_damage(error)
                file.write(page.ljust(min(_PAGE_BYTES, size - position), b"\0"))
    finally:
        os.close(descriptor)
    shutil.copystat(source, target)


class _StreamCopier:
    """Copies streams to the new root."""

    def __init__(self, root: Path, target: Path, result: Salvage) -> None:
        self.result = result
        self._root = root
        self._target = target
        self._catalog = Catalog(target / CATALOG_FILE)
        self._known = {row.id: row for row in self._catalog.streams()}
        self._copied: set[str] = set()
        self._names: set[str] = set()

    def close(self) -> None:
        self._catalog.close()

    def add(self, check: StreamCheck) -> None:
        report, stream_id = check.report, check.snapshot.row.id
        row = self._known.get(stream_id)
        definition = check.definition or MessageStreamDefinition(
            f"salvaged-{stream_id}", max_size=max(2 * report.bytes, 256 * 1024**2)
        )
        if row is None:
            if definition.name in self._names | {each.name for each in self._known.values()}:
                definition = msgspec.structs.replace(
                    definition, name=f"{definition.name}-{stream_id}"
                )
            encoded = encode_definition(definition)
            self._catalog.add_stream(StreamRow(stream_id, definition.name, encoded, 0, 0))
        elif not _is_decodable(row.definition):
            definition = msgspec.structs.replace(definition, name=row.name)
            encoded = encode_definition(definition)
            progress = list(self._catalog.progress(stream_id).values())
            self._catalog.remove_stream(stream_id)
            self._catalog.add_stream(row._replace(definition=encoded), progress)
        self._names.add(row.name if row is not None else definition.name)
        self._copied.add(stream_id)
        self.result.streams += 1
        if not report.is_in_memory:
            self._copy_segments(check, definition.stream_segment_size)

    def _copy_segments(self, check: StreamCheck, segment_size: int) -> None:
        report, stream_id = check.report, check.snapshot.row.id
        source = self._root / "streams" / stream_id
        directory = self._target / "streams" / stream_id
        directory.mkdir(mode=0o700)
        end = report.end_sequence_number
        newest = check.segments[-1] if check.segments else None
        if newest is None or not _is_end_known(source, newest):
            # As in recovery: each message has at least one byte.
            end += segment_size
        sealed = [
            _copy_segment(source, directory, segment)
            for segment in check.segments
            if any(span.reason is None for span in segment.spans)
        ]
        self.result.bytes += sum(summary.size for summary in sealed)
        self.result.messages += report.intact_messages
        is_appendable = newest is not None and newest.summary is None and newest.end == end
        if is_appendable and sealed and sealed[-1].end == end:
            active = sealed.pop()
        else:
            active = _begin_segment(directory, end)
        # Replaces all rows by the rows of the copied segments.
        self._catalog.remove_segments(stream_id, _MAX_NUMBER)
        self._catalog.remove_segments(stream_id, report.oldest_sequence_number)
        # The numbers of lost messages are not reused.
        self._catalog.reserve(stream_id, end)
        self._catalog.add_segments(stream_id, sealed)
        self._catalog.set_checkpoints([(stream_id, active)])
        self._catalog.add_gaps(stream_id, _find_gaps(check, end))
        _sync_directory(directory)

    def finish(self) -> None:
        for stream_id in self._known.keys() - self._copied:
            self._catalog.remove_stream(stream_id)
        self._catalog.forget_directories(self._catalog.removed_directories())
        self._catalog.remove_orphans()
        token = self._root / TOKEN_FILE
        if token.exists():
            shutil.copyfile(token, self._target / TOKEN_FILE)
            (self._target / TOKEN_FILE).chmod(0o600)
        _sync_directory(self._target / "streams")
        _sync_directory(self._target)


def _is_decodable(definition: bytes) -> bool:
    try:
        decode_definition(definition)
    except DamagedDefinitionError:
        return False
    return True


def _is_end_known(source: Path, newest: SegmentCheck) -> bool:
    """Whether no message can have been stored after the newest segment."""
    if newest.summary is not None:
        return False
    try:
        with SegmentSource(source, newest.first, newest.records) as files:
            return files.count >= newest.end - newest.first
    except OSError as error:
        raise_unless_damage(error)
        return False


def _find_gaps(check: StreamCheck, end: int) -> Iterator[tuple[int, int]]:
    """The numbers [first, end) between intact messages."""
    first = check.report.oldest_sequence_number
    for segment in check.segments:
        for span in segment.spans:
            if span.reason is None:
                if first < span.first:
                    yield first, span.first
                first = span.end
    if first < end:
        yield first, end


def _begin_segment(directory: Path, first: int) -> SegmentSummary:
    for path in (data_path(directory, first), index_path(directory, first)):
        path.touch(mode=0o600, exist_ok=False)
    return SegmentSummary(first, first, 0, 0, 0, 0, 0)


def _copy_segment(source: Path, directory: Path, segment: SegmentCheck) -> SegmentSummary:
    first = segment.first
    with (
        SegmentSource(source, first, segment.records) as files,
        data_path(directory, first).open("xb") as data,
        index_path(directory, first).open("xb") as index,
    ):
        writer = _SegmentWriter(first, data, index)
        for span in segment.spans:
            if span.reason is None:
                writer.copy(files, span)
            else:
                writer.leave_out(span)
        for file in (data, index):
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o600)
    return writer.summary()


class _SegmentWriter:
    """Writes one segment without the payloads of damaged messages."""

    def __init__(self, first: int, data: IO[bytes], index: IO[bytes]) -> None:
        self._first = self._end = first
        self._data = data
        self._index = index
        self._size = self._data_crc = self._index_crc = 0
        self._times: tuple[int, int] | None = None
        self._is_damaged = False

    def copy(self, files: SegmentSource, span: CheckedSpan) -> None:
        shift = self._size - span.start
        position = span.start
        while position < span.stop:
            piece = files.read_data(position, min(_PIECE_BYTES, span.stop - position))
            self._data.write(piece)
            self._data_crc = crc32(piece, self._data_crc)
            position += len(piece)
        self._size += span.stop - span.start
        for first in range(span.first, span.end, _ENTRIES_A_PIECE):
            count = min(_ENTRIES_A_PIECE, span.end - first)
            entries = [
                entry
                for entry in files.read_entries(first - self._first, count)
                if entry is not None
            ]
            times = [ingest_time for _, _, ingest_time in entries]
            known = self._times or (times[0], times[0])
            self._times = min(known[0], *times), max(known[1], *times)
            self._write_entries(
                ENTRY.pack(end + shift, checksum, ingest_time)
                for end, checksum, ingest_time in entries
            )
        self._end = span.end

    def leave_out(self, span: CheckedSpan) -> None:
        """Writes entries without a payload, which always read as damaged."""
        self._is_damaged = True
        entry = ENTRY.pack(self._size, 0, self._times[1] if self._times else 0)
        left = span.end - span.first
        while left:
            count = min(left, _ENTRIES_A_PIECE)
            self._write_entries([entry * count])
            left -= count
        self._end = span.end

    def _write_entries(self, entries: Iterable[bytes]) -> None:
        packed = b"".join(entries)
        self._index.write(packed)
        self._index_crc = crc32(packed, self._index_crc)

    def summary(self) -> SegmentSummary:
        oldest, newest = self._times or (0, 0)
        return SegmentSummary(
            self._first,
            self._end,
            self._size,
            oldest,
            newest,
            # As in recovery: the checksum of a damaged segment must not match.
            self._data_crc ^ self._is_damaged,
            self._index_crc,
        )


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
