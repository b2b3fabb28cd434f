"""Salvage: copies what is readable of a damaged root to a new one.

The copy is a root of its own. Streams keep their names, definitions and sequence numbers, and
tokens, export progress and uploads are copied if the catalog can be read. A damaged message keeps
its number: in a segment that has others it gets an index entry without a payload, which reads as
damaged; a segment without an intact message is left out, and the next start fills the gap.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from penstock.errors import StoreError
from penstock.model import MessageStreamDefinition, to_wire
from penstock.model.storage import SegmentSummary
from penstock.root import TOKEN_FILE, is_served
from penstock.store.catalog import Catalog
from penstock.store.catalog_reader import copy_catalog
from penstock.store.record import ENTRY, crc32, data_path, index_path
from penstock.store.rows import StreamRow
from penstock.store.schema import CATALOG_FILE, CHECKED_COLUMNS, is_intact
from penstock.store.segment_check import Meter, SegmentSource, Span, ignore_bytes
from penstock.store.verification import (
    Problem,
    Report,
    SegmentCheck,
    StreamCheck,
    Verification,
)

_PIECE_BYTES = 1 << 20
_MAX_NUMBER = (1 << 63) - 1
_ENTRIES_A_PIECE = 4096
# What a catalog holds beside streams and their segments.
_TABLES = ("export_progress", "token", "upload")


class Salvage(msgspec.Struct, rename="camel", kw_only=True):
    """What was copied, and what the check of the old root found."""

    report: Report
    streams: int = 0
    messages: int = 0
    bytes: int = 0
    notes: list[Problem] = []


def salvage(
    root: Path, target: Path, *, patterns: Sequence[str] = (), meter: Meter = ignore_bytes
) -> Salvage:
    """Copies streams of these names, or all; StoreError if the target is not an empty place."""
    if is_served(root):
        raise StoreError(f"a broker serves {root}: stop it before you copy from it")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"{target} is not empty: name a new directory")
    if target.resolve().is_relative_to(root.resolve()):
        raise StoreError(f"{target} is below {root}: name a directory elsewhere")
    verification = Verification(root, patterns=patterns, meter=meter)
    (target / "streams").mkdir(mode=0o700, parents=True, exist_ok=True)
    target.chmod(0o700)
    copy = _Copy(root, target, Salvage(report=verification.report))
    try:
        for check in verification.streams():
            copy.add(check)
        copy.finish()
    finally:
        copy.close()
    if is_served(root):
        copy.result.notes.append(Problem(str(root), "a broker was started meanwhile: copy again"))
    return copy.result


class _Copy:
    def __init__(self, root: Path, target: Path, result: Salvage) -> None:
        self.result = result
        self._root = root
        self._target = target
        self._catalog, self._is_new = self._copy_catalog()
        self._known = {row.id: row for row in self._catalog.streams()}
        self._copied: set[str] = set()
        self._names: set[str] = set()

    def close(self) -> None:
        self._catalog.close()

    def _copy_catalog(self) -> tuple[Catalog, bool]:
        path = self._target / CATALOG_FILE
        try:
            copy_catalog(self._root, self._target)
            return Catalog(path), False
        except (OSError, sqlite3.DatabaseError) as error:
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise
            reason = f"not copied as a whole: {error}"
            self.result.notes.append(Problem(CATALOG_FILE, reason))
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return Catalog(path), True

    def add(self, check: StreamCheck) -> None:
        report, stream_id = check.report, check.facts.row.id
        row = self._known.get(stream_id)
        definition = check.definition or MessageStreamDefinition(
            f"salvaged-{stream_id}", max_size=max(2 * report.bytes, 256 * 1024**2)
        )
        if row is None or row.name in self._names:
            if definition.name in self._names | {each.name for each in self._known.values()}:
                definition = msgspec.structs.replace(
                    definition, name=f"{definition.name}-{stream_id}"
                )
            encoded = msgspec.json.encode(to_wire(definition))
            self._catalog.add_stream(StreamRow(stream_id, definition.name, encoded, 0, 0))
        elif check.definition is not None and not _is_decodable(row.definition):
            encoded = msgspec.json.encode(to_wire(check.definition))
            progress = list(self._catalog.progress(stream_id).values())
            self._catalog.remove_stream(stream_id)
            self._catalog.add_stream(row._replace(definition=encoded), progress)
        self._names.add(row.name if row is not None else definition.name)
        self._copied.add(stream_id)
        self.result.streams += 1
        if not report.is_in_memory:
            self._copy_segments(check)

    def _copy_segments(self, check: StreamCheck) -> None:
        report, stream_id = check.report, check.facts.row.id
        source = self._root / "streams" / stream_id
        directory = self._target / "streams" / stream_id
        directory.mkdir(mode=0o700)
        sealed = []
        checkpoint = None
        for segment in check.segments:
            is_active = segment is check.segments[-1] and segment.summary is None
            if not any(span.reason is None for span in segment.spans) and not (
                is_active and index_path(source, segment.first).exists()
            ):
                continue
            summary = _copy_segment(source, directory, segment)
            if is_active:
                checkpoint = summary
            else:
                sealed.append(summary)
            self.result.bytes += summary.size
        self.result.messages += report.intact_messages
        # All rows go, and those of the copied segments take their places.
        self._catalog.remove_segments(stream_id, _MAX_NUMBER)
        self._catalog.remove_segments(stream_id, report.oldest_sequence_number)
        # No number of a message that is lost is used again.
        self._catalog.reserve(stream_id, report.end_sequence_number)
        self._catalog.add_segments(stream_id, sealed)
        if checkpoint is not None:
            self._catalog.set_checkpoints([(stream_id, checkpoint)])
        _sync_directory(directory)

    def finish(self) -> None:
        if self._is_new:
            self._copy_tables()
        for stream_id in self._known.keys() - self._copied:
            self._catalog.remove_stream(stream_id)
        self._catalog.forget_directories(self._catalog.removed_directories())
        self._catalog.renew_checksums()
        token = self._root / TOKEN_FILE
        if token.exists():
            shutil.copyfile(token, self._target / TOKEN_FILE)
            (self._target / TOKEN_FILE).chmod(0o600)
        _sync_directory(self._target / "streams")
        _sync_directory(self._target)

    def _copy_tables(self) -> None:
        """Rows of a damaged catalog, as far as SQLite gives them."""
        path = self._root / CATALOG_FILE
        if not path.exists():
            return
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)
        try:
            for table in _TABLES:
                count = sum(self._add_row(table, row) for row in _rows(connection, table))
                self.result.notes.append(Problem(CATALOG_FILE, f"{count} rows of {table} copied"))
        finally:
            connection.close()

    def _add_row(self, table: str, row: Mapping[str, Any]) -> bool:
        """False if it does not fit this catalog: its stream is gone, or a value is damaged."""
        columns = CHECKED_COLUMNS.get(table, "").split(", ")
        if "checksum" in row and not is_intact((*map(row.get, columns), row["checksum"])):
            return False
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        insert = f"INSERT INTO {table} ({names}) VALUES ({marks})"  # noqa: S608 - names of columns
        try:
            with self._catalog.transaction() as connection:
                connection.execute(insert, tuple(row.values()))
        except sqlite3.Error:
            return False
        return True


def _rows(connection: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    """Those up to the first that cannot be read."""
    try:
        found = connection.execute(f"SELECT * FROM {table}")  # noqa: S608 - a constant
        names = [column[0] for column in found.description]
        for row in found:
            yield dict(zip(names, row, strict=True))
    except sqlite3.Error:
        return


def _is_decodable(definition: bytes) -> bool:
    try:
        msgspec.json.decode(definition, type=MessageStreamDefinition)
    except msgspec.DecodeError:
        return False
    return True


def _copy_segment(source: Path, directory: Path, segment: SegmentCheck) -> SegmentSummary:
    first = segment.first
    with (
        SegmentSource(source, first, segment.records) as files,
        data_path(directory, first).open("xb") as data,
        index_path(directory, first).open("xb") as index,
    ):
        writer = _Writer(first, data, index)
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


class _Writer:
    """Writes one segment, without the payloads of damaged messages."""

    def __init__(self, first: int, data: IO[bytes], index: IO[bytes]) -> None:
        self._first = self._end = first
        self._data = data
        self._index = index
        self._size = self._data_crc = self._index_crc = 0
        self._times: tuple[int, int] | None = None
        self._is_damaged = False

    def copy(self, files: SegmentSource, span: Span) -> None:
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

    def leave_out(self, span: Span) -> None:
        """An entry without a payload is damaged, whatever its checksum is."""
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
            # As recovery does: the checksum of a damaged segment matches nothing.
            self._data_crc ^ self._is_damaged,
            self._index_crc,
        )


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
