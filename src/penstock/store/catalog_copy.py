"""Copies the catalog, and rebuilds a damaged catalog from its intact rows and the copy.

The copy is a separate database, made in the background: some seconds after a change of definitions
or tokens, every few minutes otherwise, and at a stop. It replaces the previous copy atomically, and
only if all of its rows are intact.

A damaged catalog is renamed and never written to again. Its intact rows go into a new catalog. If a
table has lost rows, the missing rows come from the copy. A salvage reads rows in the same way.

The new catalog is written beside the damaged one. Once it is complete, it is renamed to
`catalog.sqlite.rebuilt-<time>`. From then on, every start moves it to the catalog's name. A crash
between any two renames leaves either the damaged catalog or the complete new one.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock.model import Persistence
from penstock.store.catalog import Catalog
from penstock.store.definitions import DamagedDefinitionError, decode_definition
from penstock.store.files import Disk
from penstock.store.record import first_of_name
from penstock.store.rows import StreamRow
from penstock.store.schema import (
    CATALOG_FILE,
    CHECKED_COLUMNS,
    SCHEMA_VERSION,
    check_rows,
    is_intact,
)

logger = logging.getLogger(__name__)

COPY_FILE = "catalog.backup.sqlite"

_MIN_INTERVAL_SECONDS = 5.0
_INTERVAL_SECONDS = 300.0
# The background thread spends at most this share of its time on copies.
_MAX_SHARE = 0.02

# More numbers than a memory stream assigns between two copies of the catalog.
_MAX_NUMBERS_BETWEEN_COPIES = 1 << 40

_SUFFIXES = ("-wal", "-shm", "-journal")

_REBUILT_PREFIX = f"{CATALOG_FILE}.rebuilt-"
_DAMAGED_PREFIX = f"{CATALOG_FILE}.damaged-"

# The columns and the key of each table.
_TABLES: Mapping[str, tuple[str, str]] = {
    "stream": (CHECKED_COLUMNS["stream"], "id"),
    "segment": (CHECKED_COLUMNS["segment"], "stream_id, first"),
    "checkpoint": (CHECKED_COLUMNS["checkpoint"], "stream_id"),
    "export_progress": (CHECKED_COLUMNS["export_progress"], "stream_id, identifier"),
    "token": (CHECKED_COLUMNS["token"], "id"),
    "upload": ("id, export_id, sequence_number, state", "id"),
    "gap": (CHECKED_COLUMNS["gap"], "stream_id, first"),
    "commits": (CHECKED_COLUMNS["commits"], "id"),
    "removed_directory": ("stream_id", "stream_id"),
}

# Tables that catalogs of earlier versions do not have.
_NEW_TABLES = ("gap", "commits")

# SQLite's error messages contain names from the file, which may be invalid UTF-8 after damage.
_READ_ERRORS = (sqlite3.Error, UnicodeDecodeError)

Rows = dict[tuple[Any, ...], tuple[Any, ...]]


class CatalogCopier:
    """Keeps the copy up to date. Called from one thread."""

    def __init__(
        self,
        catalog: Catalog,
        root: Path,
        disk: Disk,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog = catalog
        self._root = root
        self._disk = disk
        self._monotonic = monotonic
        self._copied_state: tuple[int, ...] | None = None
        self._copied_definitions: tuple[int, ...] | None = None
        self._earliest = self._next = monotonic() + _MIN_INTERVAL_SECONDS
        self._error = ""

    def copy_if_due(self) -> None:
        now = self._monotonic()
        if now < self._earliest:
            return
        with contextlib.suppress(sqlite3.Error):
            if now >= self._next or self._catalog.definition_state() != self._copied_definitions:
                self.copy()

    def copy(self) -> None:
        """Copies the catalog. A failure is logged once and leaves the previous copy unchanged."""
        began = self._monotonic()
        try:
            state = self._catalog.state()
            if state == self._copied_state:
                self._next = began + _INTERVAL_SECONDS
                return
            definitions = self._catalog.definition_state()
            copy_catalog(self._root, self._disk)
        except (OSError, sqlite3.Error) as error:
            if self._error != str(error):
                self._error = str(error)
                logger.error("cannot copy the catalog to %s: %s", self._root / COPY_FILE, error)
        else:
            self._error = ""
            self._copied_state, self._copied_definitions = state, definitions
        now = self._monotonic()
        pause = (now - began) / _MAX_SHARE
        self._earliest = now + max(_MIN_INTERVAL_SECONDS, pause)
        self._next = now + max(_INTERVAL_SECONDS, pause)


def copy_catalog(root: Path, disk: Disk) -> None:
    """Replaces the copy once the new one is on the disk and all its rows are intact."""
    copy = root / COPY_FILE
    temporary = copy.with_name(f"{COPY_FILE}.new")
    _remove_database(disk, temporary)
    try:
        # SQLite writes into the empty file and keeps its mode.
        descriptor = disk.create(temporary)
        try:
            with contextlib.closing(_connect(root / CATALOG_FILE)) as connection:
                connection.execute("VACUUM INTO ?", (str(temporary),))
            with contextlib.closing(_connect(temporary)) as connection:
                check_rows(connection)
            disk.sync(descriptor)
        finally:
            disk.close(descriptor)
        temporary.replace(copy)
        disk.sync_directory(root)
    except BaseException:
        _remove_database(disk, temporary)
        raise


class RemainingRows(NamedTuple):
    """The intact rows of a damaged catalog, completed from its copy."""

    tables: Mapping[str, Sequence[tuple[Any, ...]]]
    # The time of the copy, in seconds since 1970; None if there is no copy or it was not used.
    copy_time: float | None
    # Whether the copy has lost rows of the tables that it was used for.
    is_copy_damaged: bool
    # Streams with rows from the copy, which may be older than the files of the streams.
    stale_streams: frozenset[str]
    # Ids and names of streams whose rows were damaged.
    damaged_streams: Sequence[tuple[str, str]]


def read_remaining_rows(root: Path) -> RemainingRows:
    """Reads all intact rows of a damaged or missing catalog, and missing rows from the copy."""
    copy = root / COPY_FILE
    tables: dict[str, Sequence[tuple[Any, ...]]] = {}
    stale_streams: set[str] = set()
    damaged_streams: list[tuple[str, str]] = []
    is_copy_used = is_copy_damaged = False
    with _read_tables(root / CATALOG_FILE) as read, _read_tables(copy) as read_copy:
        is_copy_newer = 0 <= _count_commits(read("commits")) < _count_commits(read_copy("commits"))
        for table in _TABLES:
            rows, damaged, is_whole = read(table)
            if table == "stream":
                damaged_streams += [(str(row[0]), str(row[1])) for row in damaged]
            if is_copy_newer and read_copy(table).is_whole:
                # Rows that are not in the newer copy were removed.
                rows, is_whole = {}, False
            if not is_whole:
                found = read_copy(table)
                copied = {key: row for key, row in found.rows.items() if key not in rows}
                is_copy_used = is_copy_used or copy.exists()
                is_copy_damaged = is_copy_damaged or not found.is_whole
                if table in ("stream", "segment", "checkpoint"):
                    stale_streams.update(row[0] for row in copied.values())
                rows |= copied
            tables[table] = list(rows.values())
    copy_time = copy.stat().st_mtime if is_copy_used else None
    return RemainingRows(
        tables,
        copy_time,
        is_copy_used and is_copy_damaged,
        frozenset(stale_streams),
        damaged_streams,
    )


def has_lost_commits(root: Path) -> bool:
    """Whether the copy is newer than the catalog, because the write-ahead log lost commits.

    SQLite treats the first damaged frame as the end of the log, and reports no damage.
    """
    path, copy = root / CATALOG_FILE, root / COPY_FILE
    if not path.exists() or not copy.exists():
        return False
    with contextlib.closing(_connect(path)) as connection:
        count = _count_commits(_read_rows(connection, "commits"))
        is_known = count >= 0 or _version(connection) == 0
    with contextlib.closing(_connect(copy)) as connection:
        return is_known and count < _count_commits(_read_rows(connection, "commits"))


def _count_commits(table: _Table) -> int:
    """The number of commits, or -1 if it is unknown."""
    return max((row[1] for row in table.rows.values()), default=-1)


class RebuiltCatalog(NamedTuple):
    """A new catalog, and its source rows."""

    # The path to which `use_rebuilt` moves the damaged catalog; None if it was missing.
    moved: Path | None
    rows: RemainingRows


def rebuild_catalog(
    root: Path, disk: Disk, complete: Callable[[Catalog, RemainingRows], None]
) -> RebuiltCatalog:
    """Creates a new catalog with all remaining rows of a damaged or missing one.

    `complete` adds rows that neither the catalog nor its copy has. `use_rebuilt` replaces the
    damaged catalog with the new one, now or at the next start.
    """
    path = root / CATALOG_FILE
    rows = read_remaining_rows(root)
    temporary = path.with_name(f"{CATALOG_FILE}.new")
    _remove_database(disk, temporary)
    catalog = Catalog(temporary)
    try:
        catalog.restore_rows(rows.tables)
        reconcile_rows(catalog, root, rows.stale_streams)
        complete(catalog, rows)
    finally:
        catalog.close()
    _require_whole(temporary)
    number = time.time_ns()
    # Renamed last: if writing the new catalog fails, the next start reads the old one.
    temporary.replace(root / f"{_REBUILT_PREFIX}{number}")
    disk.sync_directory(root)
    return RebuiltCatalog(root / f"{_DAMAGED_PREFIX}{number}" if path.exists() else None, rows)


def _require_whole(path: Path) -> None:
    """Raises an error if the write-ahead log could not be moved into the closed database."""
    wal = path.with_name(f"{path.name}-wal")
    if wal.exists() and wal.stat().st_size > 0:
        raise sqlite3.OperationalError(f"the catalog {path} could not be written completely")


def is_rebuilt(root: Path) -> bool:
    """Whether there is a rebuilt catalog that has not replaced the damaged one yet."""
    return find_rebuilt(root) is not None


def find_rebuilt(root: Path) -> Path | None:
    """The rebuilt catalog that the next start will use."""
    return max(root.glob(f"{_REBUILT_PREFIX}*"), default=None)


def use_rebuilt(root: Path, disk: Disk) -> None:
    """Replaces the damaged catalog with the rebuilt one, and keeps the damaged one renamed."""
    path = root / CATALOG_FILE
    for rebuilt in sorted(root.glob(f"{_REBUILT_PREFIX}*")):
        damaged = f"{_DAMAGED_PREFIX}{rebuilt.name.removeprefix(_REBUILT_PREFIX)}"
        # The write-ahead log first: SQLite must never apply it to another catalog.
        for suffix in ("-wal", ""):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(root / f"{damaged}{suffix}")
        path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
        disk.sync_directory(root)
        rebuilt.replace(path)
        disk.sync_directory(root)


def reconcile_rows(catalog: Catalog, root: Path, stale_streams: Container[str]) -> None:
    """Updates rows from an older copy of the catalog according to the files.

    A stream without a directory was deleted after the copy, and segments without files below the
    oldest file were removed after it. A memory stream has no files: it gets a margin of numbers.
    """
    for row in catalog.streams():
        if row.id not in stale_streams:
            continue
        directory = root / "streams" / row.id
        if _is_in_memory(row):
            catalog.reserve(row.id, row.reserved + _MAX_NUMBERS_BETWEEN_COPIES)
        elif not directory.is_dir():
            logger.warning(
                "stream %r in the catalog's copy has no directory: it was deleted after the copy",
                row.name,
            )
            catalog.remove_stream(row.id)
        else:
            oldest = find_oldest(directory, row.oldest)
            catalog.remove_segments(row.id, max(oldest, row.oldest))


def find_oldest(directory: Path, default: int) -> int:
    """The first number of the oldest segment file."""
    firsts = [first_of_name(path.name) for path in directory.iterdir()]
    return min((first for first in firsts if first is not None), default=default)


def _is_in_memory(row: StreamRow) -> bool:
    try:
        definition = decode_definition(row.definition)
    except DamagedDefinitionError:
        return False
    return definition.persistence is Persistence.Memory


def is_version_wrong(root: Path) -> bool:
    """Whether the newer version number of a catalog is this version with a flipped bit.

    Then the catalog and its copy have the tables of this version. A newer Penstock would have
    replaced the copy.
    """
    versions = []
    try:
        for path in (root / CATALOG_FILE, root / COPY_FILE):
            with contextlib.closing(_connect(path)) as connection:
                for table, columns in CHECKED_COLUMNS.items():
                    found = connection.execute(f"PRAGMA table_info({table})").fetchall()
                    if [each[1] for each in found] != [*columns.split(", "), "checksum"]:
                        return False
                versions += connection.execute("PRAGMA user_version").fetchone()
    except _READ_ERRORS:
        return False
    version, copy_version = versions
    return bool(copy_version == SCHEMA_VERSION and (version ^ SCHEMA_VERSION).bit_count() == 1)


class _Table(NamedTuple):
    rows: Rows
    damaged: Sequence[tuple[Any, ...]]
    # Whether all rows could be read and none was damaged.
    is_whole: bool


ReadTable = Callable[[str], _Table]


@contextlib.contextmanager
def _read_tables(path: Path) -> Iterator[ReadTable]:
    """Yields a function that reads all readable rows of a table."""
    if not path.exists():
        yield lambda _table: _Table({}, [], is_whole=False)
        return
    with contextlib.closing(_connect(path)) as connection:
        # Text that is not UTF-8 damages only its row, instead of failing the query.
        connection.text_factory = lambda text: text.decode(errors="surrogateescape")
        yield lambda table: _read_rows(connection, table)
    # SQLite may have created these files for reading.
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    wal = path.with_name(f"{path.name}-wal")
    if wal.exists() and wal.stat().st_size == 0:
        wal.unlink()


def _read_rows(connection: sqlite3.Connection, table: str) -> _Table:
    columns, key = _TABLES[table]
    width, key_width = columns.count(",") + 1, key.count(",") + 1
    rows: Rows = {}
    damaged: list[tuple[Any, ...]] = []
    can_be_read = True
    try:
        found = [column for _, column, *_ in connection.execute(f"PRAGMA table_info({table})")]
    except _READ_ERRORS:
        found = []
    if not found and table in _NEW_TABLES and 0 < _version(connection) < SCHEMA_VERSION:
        return _Table(rows, damaged, is_whole=True)
    # Catalogs of earlier versions have no checksums.
    is_checked = table in CHECKED_COLUMNS and "checksum" in found
    # Reads from both ends, because a scan stops at an unreadable page.
    for order in ("ASC", "DESC"):
        query = (
            f"SELECT {columns}{', checksum' if is_checked else ''} FROM {table} NOT INDEXED "  # noqa: S608 - constants
            f"ORDER BY {'rowid' if table == 'stream' else key} {order}"
        )
        try:
            for row in connection.execute(query):
                if not is_checked or is_intact(row):
                    rows[row[:key_width]] = row[:width]
                else:
                    damaged.append(row)
            break
        except _READ_ERRORS:
            can_be_read = False
    return _Table(rows, damaged, is_whole=can_be_read and not damaged)


def _version(connection: sqlite3.Connection) -> int:
    """The schema version; 0 if there are no tables yet, -1 if it cannot be read."""
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    except _READ_ERRORS:
        return -1
    return int(version)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def _remove_database(disk: Disk, path: Path) -> None:
    for suffix in ("", *_SUFFIXES):
        with contextlib.suppress(OSError):
            disk.remove(path.with_name(path.name + suffix))


def describe_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
