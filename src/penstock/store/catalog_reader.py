"""Reads the catalog without changing any file, for verification and salvage.

`mode=ro` alone is not read-only. SQLite creates `-wal` and `-shm` beside a database in WAL mode if
they are missing, and `immutable=1` ignores the log of a killed broker. So the database of a running
broker, whose files exist, is opened with `mode=ro`. Otherwise a copy is opened.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from penstock.discovery import is_served
from penstock.errors import StoreError
from penstock.model.storage import SegmentSummary
from penstock.store.catalog import Catalog
from penstock.store.catalog_copy import (
    COPY_FILE,
    find_rebuilt,
    has_lost_commits,
    is_version_wrong,
)
from penstock.store.rows import STREAM_ID, StreamRow
from penstock.store.schema import CATALOG_FILE, SCHEMA_VERSION, check_rows

_LOG_SUFFIXES = ("-wal", "-shm")

_SUMMARY = "first, end, size, oldest_time, newest_time, data_crc, index_crc"

_STREAM_TYPES = (str, str, bytes, int, int)
_SUMMARY_TYPES = (int,) * 7


class StreamSnapshot(NamedTuple):
    """The catalog's rows about the messages of one stream, read in one transaction."""

    row: StreamRow
    segments: Sequence[SegmentSummary]
    checkpoint: SegmentSummary | None
    # Every number below it was assigned when the catalog was written.
    lowest_end: int
    # Numbers [first, end) without messages after a salvage, sorted.
    gaps: Sequence[tuple[int, int]] = ()


def copy_catalog_files(root: Path, directory: Path) -> Path:
    """Copies the catalog of a stopped broker and its write-ahead log."""
    rebuilt = find_rebuilt(root)
    shutil.copyfile(rebuilt or root / CATALOG_FILE, directory / CATALOG_FILE)
    log = root / f"{CATALOG_FILE}-wal"
    # The log beside a rebuilt catalog belongs to the damaged one.
    if rebuilt is None and log.exists():
        shutil.copyfile(log, directory / log.name)
    return directory / CATALOG_FILE


class CatalogReader:
    """A read-only catalog. Raises OSError, StoreError or sqlite3.Error if it cannot be read."""

    def __init__(self, root: Path) -> None:
        with ExitStack() as opened:
            path = find_rebuilt(root) or root / CATALOG_FILE
            if not path.is_file():
                raise FileNotFoundError(f"{path} is missing")
            have_logs = all((root / f"{CATALOG_FILE}{each}").exists() for each in _LOG_SUFFIXES)
            if not (have_logs and is_served(root)) or path.name != CATALOG_FILE:
                directory = opened.enter_context(tempfile.TemporaryDirectory(prefix="penstock-"))
                path = copy_catalog_files(root, Path(directory))
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=10
            )
            opened.callback(self._connection.close)
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            self._problem = ""
            if version > SCHEMA_VERSION:
                if not _check_copies(root, is_version_wrong):
                    raise StoreError(
                        f"the store was written by a newer Penstock (catalog version {version}, "
                        f"this one supports {SCHEMA_VERSION})"
                    )
                self._problem = "its version number is wrong"
                version = SCHEMA_VERSION
            elif not is_served(root) and _check_copies(root, has_lost_commits):
                self._problem = "it has lost its last changes: its write-ahead log is damaged"
            elif version < SCHEMA_VERSION and not is_served(root):
                self._problem = _try_migration(root)
            self._version = version
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._opened.close()

    def find_damage(self) -> list[str]:
        """Describes damage to the pages, indices or rows of the database."""
        if self._problem:
            return [self._problem]
        try:
            found = [line for (line,) in self._select("PRAGMA quick_check(20)")]
            if found != ["ok"]:
                return found
            # Older versions have no checksums.
            if self._version == SCHEMA_VERSION:
                check_rows(self._connection)
            unusable = len(self._select("SELECT id FROM stream")) - len(self.streams())
        except sqlite3.Error as error:
            return [str(error)]
        except UnicodeDecodeError as error:
            return [f"it contains text that is not UTF-8: {error}"]
        return [f"table stream has unusable rows: {unusable}"] if unusable else []

    def streams(self) -> list[StreamRow]:
        """All valid rows of streams. A damaged catalog may have invalid rows."""
        rows = self._select("SELECT id, name, definition, oldest, reserved FROM stream")
        return [
            StreamRow(*row)
            for row in rows
            if _has_types(row, _STREAM_TYPES) and STREAM_ID.fullmatch(row[0])
        ]

    def removed_directories(self) -> set[str]:
        return {stream_id for (stream_id,) in self._select("SELECT * FROM removed_directory")}

    def snapshot(self, stream_id: str) -> StreamSnapshot | None:
        """The rows of one stream; None if it does not exist."""
        with self._read_transaction():
            rows = self._select(
                "SELECT id, name, definition, oldest, reserved FROM stream WHERE id = ?", stream_id
            )
            if not rows:
                return None
            segments = self._select(
                f"SELECT {_SUMMARY} FROM segment WHERE stream_id = ? ORDER BY first",  # noqa: S608
                stream_id,
            )
            checkpoints = self._select(
                f"SELECT {_SUMMARY} FROM checkpoint WHERE stream_id = ?",  # noqa: S608
                stream_id,
            )
            [(exported,)] = self._select(
                "SELECT max(last_exported) FROM export_progress WHERE stream_id = ?", stream_id
            )
            gaps = []
            # Older versions have no such table.
            if self._version == SCHEMA_VERSION:
                gaps = self._select(
                    "SELECT first, end FROM gap WHERE stream_id = ? ORDER BY first", stream_id
                )
        _require_types(rows, _STREAM_TYPES)
        _require_types([*segments, *checkpoints], _SUMMARY_TYPES)
        _require_types([(-1 if exported is None else exported,), *gaps], (int, int))
        row = StreamRow(*rows[0])
        return StreamSnapshot(
            row,
            [SegmentSummary(*each) for each in segments],
            SegmentSummary(*checkpoints[0]) if checkpoints else None,
            max(row.reserved, (-1 if exported is None else exported) + 1),
            [(first, end) for first, end in gaps],
        )

    @contextmanager
    def _read_transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def _select(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, arguments).fetchall()
        except UnicodeDecodeError as error:
            # SQLite's error messages contain names from the file.
            raise sqlite3.DatabaseError(f"it contains text that is not UTF-8: {error}") from None


def _check_copies(root: Path, check: Callable[[Path], bool]) -> bool:
    """Runs a check of the start-up on temporary copies of the catalog and its copy."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        copy_catalog_files(root, Path(name))
        if (root / COPY_FILE).exists():
            shutil.copyfile(root / COPY_FILE, Path(name) / COPY_FILE)
        return check(Path(name))


def _try_migration(root: Path) -> str:
    """Why the next start cannot migrate an older catalog; empty if it can."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        try:
            Catalog(copy_catalog_files(root, Path(name))).close()
        except sqlite3.Error as error:
            return f"it cannot be migrated to version {SCHEMA_VERSION}: {error}"
    return ""


def _has_types(row: Sequence[Any], types: Sequence[type]) -> bool:
    return all(map(isinstance, row, types))


def _require_types(rows: Iterable[Sequence[Any]], types: Sequence[type]) -> None:
    if not all(_has_types(row, types) for row in rows):
        raise sqlite3.DatabaseError("a value has the wrong type")
