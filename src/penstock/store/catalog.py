"""The catalog: one SQLite database for all that is not messages, one transaction a change.

Definitions, sealed segments, checkpoints of active ones, export progress, uploads, tokens, and the
sequence numbers that outlive deleted data. A commit is on the disk when it returns. Safe to call
from any thread; another process (the command line) may have the same database open.

Changes wait for the disk, and for each other: none of them belongs in the event loop. Look-ups have
a connection of their own and wait for no commit.

A commit appends to SQLite's write-ahead log (WAL). So that commits work on a full disk, the WAL has
a minimum size from the start, and the database has free pages; see `preallocate`. A commit that
finds no space moves the WAL into the database, so that it starts again at the beginning of the
WAL. If that does not help, changes that must succeed also take the store's reserve: deleting and
updating streams, removing and sealing segments, forgetting removed directories, reserving sequence
numbers, revoking and rotating tokens.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import msgspec

from penstock.errors import StoreError
from penstock.model.storage import SegmentSummary
from penstock.store.rows import (
    ExportProgress,
    StreamRow,
    TokenRotation,
    TokenRow,
    UploadChange,
    UploadProgress,
    decode_upload,
    digest_token,
)
from penstock.store.schema import (
    CHECKED_COLUMNS,
    MIGRATIONS,
    SCHEMA,
    SCHEMA_VERSION,
    check_rows,
    row_checksum,
    with_checksum,
)

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# Space that commits on a full disk reuse: the minimum size of the WAL, and free pages in the
# database.
_WAL_BYTES = 256 * 1024
_MIN_SPARE_PAGES = 32
# More than the minimum, so that each page used does not need another transaction.
_SPARE_PAGES = 64
_PAGE_BYTES = 4096


def is_disk_full(error: BaseException) -> bool:
    """Whether SQLite failed because the disk had no space."""
    codes = sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) in codes


_Change = Callable[Concatenate["Catalog", P], T]


def _retried(*, uses_reserve: bool = False) -> Callable[[_Change[P, T]], _Change[P, T]]:
    """A change that is made by `Catalog.change`."""

    def decorate(change: _Change[P, T]) -> _Change[P, T]:
        @wraps(change)
        def retry(catalog: Catalog, /, *arguments: P.args, **options: P.kwargs) -> T:
            bound = partial(change, catalog, *arguments, **options)
            return catalog.change(bound, uses_reserve=uses_reserve)

        return retry

    return decorate


class NewerCatalogError(StoreError):
    """The catalog was written by a newer version of this program."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error is due to what is in the file, and not to the disk or to other processes."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    return code not in _ENVIRONMENT_ERRORS


_ENVIRONMENT_ERRORS = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
}


class Catalog:
    def __init__(self, path: Path, release_reserve: Callable[[], bool] = lambda: False) -> None:
        """Opens the catalog, or makes one; sqlite3.DatabaseError if the file is damaged.

        `release_reserve` frees space on a full disk, for changes that must succeed; False if it
        has none.
        """
        self._path = path
        self._release_reserve = release_reserve
        # The thread whose transaction is open.
        self._writer: int | None = None
        self._lock = threading.RLock()
        self._definition_changes = 0
        # Those of the transaction that is open.
        self._open_definition_changes = 0
        # Not before there is a table for it.
        self._counts_commits = False
        self._connection = _connect(path)
        try:
            self._prepare()
            # In WAL mode a reader goes on while another connection commits.
            self._reader = _connect(path)
        except UnicodeDecodeError as error:
            # SQLite's messages hold names from the file.
            self._connection.close()
            raise sqlite3.DatabaseError(f"it holds text that is not UTF-8: {error}") from None
        except BaseException:
            self._connection.close()
            raise
        self._reader_lock = threading.Lock()
        path.chmod(0o600)

    def _prepare(self) -> None:
        execute = self._connection.execute
        self._connection.create_function("row_checksum", -1, row_checksum, deterministic=True)
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute("PRAGMA foreign_keys = ON")
        (version,) = execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise NewerCatalogError(
                f"the store was written by a newer Penstock (catalog version {version}, this one "
                f"knows {SCHEMA_VERSION}): start that one, or restore a backup"
            )
        if version < 0:
            raise sqlite3.DatabaseError(f"its version number is {version}")
        if version == 0:
            with self.transaction():
                for statement in SCHEMA.split(";"):
                    execute(statement)
                execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        for known in range(version, SCHEMA_VERSION) if version else ():
            with self.transaction():
                for statement in MIGRATIONS[known]:
                    execute(statement)
                execute(f"PRAGMA user_version = {known + 1}")
        (state,) = execute("PRAGMA integrity_check(1)").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(state)
        check_rows(self._connection)
        self._counts_commits = True

    def close(self) -> None:
        with self._reader_lock:
            self._reader.close()
        with self._lock:
            self._connection.close()

    def data_version(self) -> int:
        """Another number after this process or another one has changed the catalog."""
        return int(self._select("PRAGMA data_version")[0][0])

    def preallocate(self) -> None:
        """Takes the space that commits on a full disk need; from a background thread."""
        wal = self._path.with_name(f"{self._path.name}-wal")
        with self._lock:
            (spare,) = self._connection.execute("PRAGMA freelist_count").fetchone()
            if spare < _MIN_SPARE_PAGES:
                with self.transaction() as connection:
                    connection.execute("CREATE TABLE spare (pages BLOB)")
                    size = _SPARE_PAGES * _PAGE_BYTES
                    connection.execute("INSERT INTO spare VALUES (zeroblob(?))", (size,))
                    connection.execute("DROP TABLE spare")
                self._empty_wal()
            if wal.exists() and wal.stat().st_size >= _WAL_BYTES:
                return
            # The transaction keeps other processes from writing to the WAL meanwhile. Zeros behind
            # its last frame end it, as a torn frame does.
            with self.transaction():
                descriptor = os.open(wal, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    size = os.fstat(descriptor).st_size
                    os.pwrite(descriptor, bytes(max(_WAL_BYTES - size, 0)), size)
                    os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)

    def _empty_wal(self) -> None:
        """Moves the WAL into the database: the next commit begins at the start of the WAL."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def change(self, change: Callable[[], T], *, uses_reserve: bool) -> T:
        """Makes a change. If it finds no space, makes space for it and repeats it.

        A change inside a transaction is repeated with all of the transaction.
        """
        if self._writer == threading.get_ident():
            return change()
        try:
            return change()
        except sqlite3.Error as error:
            if not is_disk_full(error):
                raise
        self._empty_wal()
        try:
            return change()
        except sqlite3.Error as error:
            if not (is_disk_full(error) and uses_reserve and self._release_reserve()):
                raise
        self._empty_wal()
        return change()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One commit for all changes made inside; all of them or none."""
        with self._lock:
            if self._connection.in_transaction:
                # The lock is held: it is the transaction of this thread.
                yield self._connection
                return
            self._open_definition_changes = 0
            self._connection.execute("BEGIN IMMEDIATE")
            self._writer = threading.get_ident()
            changes = self._connection.total_changes
            try:
                yield self._connection
                if self._counts_commits and self._connection.total_changes != changes:
                    self._connection.execute(
                        "UPDATE commits SET number = number + 1, "
                        "checksum = row_checksum(id, number + 1)"
                    )
                self._connection.execute("COMMIT")
                self._definition_changes += self._open_definition_changes
            except BaseException:
                # Where COMMIT itself failed (a full disk), SQLite may have rolled back already.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._writer = None

    def _select(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        with self._reader_lock:
            return self._reader.execute(query, arguments).fetchall()

    def state(self) -> tuple[int, ...]:
        """Another one after any change, by this process or another one."""
        return (self._connection.total_changes, self.data_version())

    def definition_state(self) -> tuple[int, ...]:
        """Another one after a change of definitions or tokens."""
        # Tokens are also changed by other processes.
        [(count, checksums)] = self._select("SELECT count(*), total(checksum) FROM token")
        return (self._definition_changes, count, int(checksums))

    def restore_rows(self, tables: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
        """Rows of another catalog. Those of streams that are not known may be among them."""
        self._connection.execute("PRAGMA foreign_keys = OFF")
        with self.transaction() as connection:
            if tables.get("commits"):
                connection.execute("DELETE FROM commits")
            for table, rows in tables.items():
                is_checked = table in CHECKED_COLUMNS
                for row in rows:
                    values = with_checksum(*row) if is_checked else row
                    places = ", ".join("?" * len(values))
                    # A name or a digest may be unique and yet be there twice.
                    connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({places})", values)  # noqa: S608 - a constant
        self._connection.execute("PRAGMA foreign_keys = ON")

    def remove_orphans(self) -> None:
        """Rows of streams that are not known."""
        with self.transaction() as connection:
            for table in ("segment", "checkpoint", "export_progress", "gap"):
                connection.execute(
                    f"DELETE FROM {table} WHERE stream_id NOT IN (SELECT id FROM stream)"  # noqa: S608 - a constant
                )

    # Streams

    def streams(self) -> list[StreamRow]:
        return [
            StreamRow(*row)
            for row in self._select("SELECT id, name, definition, oldest, reserved FROM stream")
        ]

    def has_stream(self, stream_id: str) -> bool:
        return bool(self._select("SELECT 1 FROM stream WHERE id = ?", stream_id))

    @_retried()
    def add_stream(self, row: StreamRow, progress: Collection[ExportProgress] = ()) -> None:
        with self.transaction() as connection:
            self._open_definition_changes += 1
            connection.execute("INSERT INTO stream VALUES (?, ?, ?, ?, ?, ?)", with_checksum(*row))
            _insert_progress(connection, row.id, progress)

    @_retried(uses_reserve=True)
    def update_stream(
        self,
        stream_id: str,
        definition: bytes,
        kept: Sequence[ExportProgress],
        added: Sequence[ExportProgress],
        moved: Sequence[ExportProgress] = (),
    ) -> None:
        """A new definition, and the exports that it has.

        The stored progress of a kept export stays: it may be ahead of what the caller knows. Of one
        that is moved, the position and the id are stored, and its counters stay.
        """
        with self.transaction() as connection:
            self._open_definition_changes += 1
            connection.execute(
                "UPDATE stream SET definition = ?1, "
                "checksum = row_checksum(id, name, ?1, oldest, reserved) WHERE id = ?2",
                (definition, stream_id),
            )
            known = connection.execute(
                "SELECT identifier FROM export_progress WHERE stream_id = ?", (stream_id,)
            ).fetchall()
            removed = {identifier for (identifier,) in known} - {each.identifier for each in kept}
            connection.executemany(
                "DELETE FROM export_progress WHERE stream_id = ? AND identifier = ?",
                [(stream_id, identifier) for identifier in removed],
            )
            _insert_progress(connection, stream_id, kept, "IGNORE")
            _insert_progress(connection, stream_id, added)
            connection.executemany(
                "UPDATE export_progress SET last_exported = ?1, error_message = ?2, "
                "export_id = ?3, checksum = row_checksum(stream_id, identifier, ?1, last_time, ?2, "
                "exported_bytes, processed_messages, skipped_messages, ?3) "
                "WHERE stream_id = ?4 AND identifier = ?5",
                [
                    (
                        each.last_exported,
                        each.error_message,
                        each.export_id,
                        stream_id,
                        each.identifier,
                    )
                    for each in moved
                ],
            )

    @_retried(uses_reserve=True)
    def remove_stream(self, stream_id: str) -> None:
        with self.transaction() as connection:
            self._open_definition_changes += 1
            connection.execute("DELETE FROM stream WHERE id = ?", (stream_id,))
            connection.execute("INSERT INTO removed_directory VALUES (?)", (stream_id,))

    def removed_directories(self) -> list[str]:
        return [stream_id for (stream_id,) in self._select("SELECT * FROM removed_directory")]

    @_retried(uses_reserve=True)
    def forget_directories(self, stream_ids: Collection[str]) -> None:
        with self.transaction() as connection:
            connection.executemany(
                "DELETE FROM removed_directory WHERE stream_id = ?",
                [(stream_id,) for stream_id in stream_ids],
            )

    @_retried(uses_reserve=True)
    def reserve(self, stream_id: str, end: int) -> None:
        """Numbers below `end` are never handed out again, whatever becomes of the messages."""
        with self.transaction() as connection:
            connection.execute(
                "UPDATE stream SET reserved = ?1, "
                "checksum = row_checksum(id, name, definition, oldest, ?1) WHERE id = ?2",
                (end, stream_id),
            )

    # Segments

    def segments(self, stream_id: str) -> list[SegmentSummary]:
        return [
            SegmentSummary(*row)
            for row in self._select(
                "SELECT first, end, size, oldest_time, newest_time, data_crc, index_crc "
                "FROM segment WHERE stream_id = ? ORDER BY first",
                stream_id,
            )
        ]

    @_retried(uses_reserve=True)
    def add_segments(self, stream_id: str, segments: Collection[SegmentSummary]) -> None:
        """Segments that are sealed and synced; nothing if their stream was deleted meanwhile."""
        with self.transaction() as connection:
            for segment in segments:
                connection.execute(
                    "INSERT OR REPLACE INTO segment SELECT ?, ?, ?, ?, ?, ?, ?, ?, ? "
                    "WHERE EXISTS (SELECT 1 FROM stream WHERE id = ?)",
                    (*with_checksum(stream_id, *msgspec.structs.astuple(segment)), stream_id),
                )
                connection.execute(
                    "DELETE FROM checkpoint WHERE stream_id = ? AND first = ?",
                    (stream_id, segment.first),
                )

    @_retried(uses_reserve=True)
    def remove_segments(self, stream_id: str, oldest: int) -> None:
        """Everything below `oldest` goes on purpose; its files may be removed after this."""
        with self.transaction() as connection:
            connection.execute(
                "DELETE FROM segment WHERE stream_id = ? AND end <= ?", (stream_id, oldest)
            )
            connection.execute(
                "DELETE FROM gap WHERE stream_id = ? AND end <= ?", (stream_id, oldest)
            )
            connection.execute(
                "UPDATE stream SET oldest = ?1, "
                "checksum = row_checksum(id, name, definition, ?1, reserved) WHERE id = ?2",
                (oldest, stream_id),
            )

    @_retried()
    def add_gaps(self, stream_id: str, gaps: Iterable[tuple[int, int]]) -> None:
        """Numbers [first, end) that are known to have no messages, and never get any."""
        with self.transaction() as connection:
            connection.executemany(
                "INSERT INTO gap VALUES (?, ?, ?, ?)",
                [with_checksum(stream_id, *gap) for gap in gaps],
            )

    def gaps(self) -> dict[str, list[tuple[int, int]]]:
        """By the id of the stream, in their order."""
        gaps: dict[str, list[tuple[int, int]]] = {}
        for stream_id, first, end in self._select(
            "SELECT stream_id, first, end FROM gap ORDER BY stream_id, first"
        ):
            gaps.setdefault(stream_id, []).append((first, end))
        return gaps

    def checkpoint(self, stream_id: str) -> SegmentSummary | None:
        rows = self._select(
            "SELECT first, end, size, oldest_time, newest_time, data_crc, index_crc "
            "FROM checkpoint WHERE stream_id = ?",
            stream_id,
        )
        return SegmentSummary(*rows[0]) if rows else None

    @_retried()
    def set_checkpoints(self, checkpoints: Collection[tuple[str, SegmentSummary]]) -> None:
        """So much of an active segment is synced: recovery need not look at it again."""
        with self.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO checkpoint SELECT ?, ?, ?, ?, ?, ?, ?, ?, ? "
                "WHERE EXISTS (SELECT 1 FROM stream WHERE id = ?)",
                [
                    (*with_checksum(stream_id, *msgspec.structs.astuple(segment)), stream_id)
                    for stream_id, segment in checkpoints
                ],
            )

    # Export progress

    def progress(self, stream_id: str) -> dict[str, ExportProgress]:
        rows = self._select(
            "SELECT identifier, last_exported, last_time, error_message, exported_bytes, "
            "processed_messages, skipped_messages, export_id FROM export_progress "
            "WHERE stream_id = ?",
            stream_id,
        )
        return {row[0]: ExportProgress(*row) for row in rows}

    @_retried()
    def commit_progress(
        self,
        progress: Collection[tuple[str, ExportProgress]],
        *uploads: UploadChange,
    ) -> None:
        """The progress of any number of exports of any number of streams, all or nothing.

        Of a stream that was deleted meanwhile, or an export in whose place there is another one,
        no progress is stored. Its uploads are: somebody has to abort them.
        """
        with self.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO export_progress SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ? "
                "WHERE EXISTS (SELECT 1 FROM stream WHERE id = ?) AND NOT EXISTS (SELECT 1 FROM "
                "export_progress WHERE stream_id = ? AND identifier = ? AND export_id <> ?)",
                [
                    (
                        *with_checksum(stream_id, *export),
                        stream_id,
                        stream_id,
                        export.identifier,
                        export.export_id,
                    )
                    for stream_id, export in progress
                ],
            )
            for change in uploads:
                _change_uploads(connection, change)

    # Uploads

    def uploads(self) -> list[UploadProgress]:
        rows = self._select("SELECT state FROM upload ORDER BY export_id, sequence_number, id")
        uploads = []
        for (state,) in rows:
            try:
                uploads.append(decode_upload(state))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                logger.error("the catalog has an upload that is damaged and is ignored: %s", error)
        return uploads

    @_retried()
    def abandon_uploads(self, uploads: Collection[UploadProgress]) -> None:
        """Update uploads; those that are over by now stay removed."""
        with self.transaction() as connection:
            connection.executemany(
                "UPDATE upload SET state = ? WHERE id = ?",
                [(msgspec.json.encode(each), each.id) for each in uploads],
            )

    # Tokens

    @_retried()
    def add_token(self, row: TokenRow, secret: str) -> None:
        with self.transaction() as connection:
            self._open_definition_changes += 1
            connection.execute(
                "INSERT OR REPLACE INTO token VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                with_checksum(
                    row.id,
                    digest_token(secret),
                    row.role,
                    "\n".join(row.patterns),
                    row.created_time,
                    row.expires_time,
                    None,
                    None,
                ),
            )

    @_retried(uses_reserve=True)
    def rotate_token(self, token_id: str, secret: str, rotation: TokenRotation) -> bool:
        """A new secret for a token. The old one expires at `grace_end`, or earlier by itself.

        An even older secret, whose grace period has not ended, is no longer valid.
        """
        with self.transaction() as connection:
            self._open_definition_changes += 1
            # In an UPDATE, the right-hand sides are the values from before it.
            changed = connection.execute(
                "UPDATE token SET digest = ?, created_time = ?, expires_time = ?, "
                "previous_digest = digest, previous_expires_time = "
                "min(coalesce(?, expires_time), coalesce(expires_time, ?)) WHERE id = ?",
                (
                    digest_token(secret),
                    rotation.created_time,
                    rotation.expires_time,
                    rotation.grace_end,
                    rotation.grace_end,
                    token_id,
                ),
            )
            connection.execute(
                f"UPDATE token SET checksum = row_checksum({CHECKED_COLUMNS['token']}) "  # noqa: S608 - constants
                "WHERE id = ?",
                (token_id,),
            )
            return changed.rowcount > 0

    @_retried(uses_reserve=True)
    def remove_token(self, token_id: str) -> bool:
        with self.transaction() as connection:
            self._open_definition_changes += 1
            return connection.execute("DELETE FROM token WHERE id = ?", (token_id,)).rowcount > 0

    def find_token(self, digest: bytes) -> TokenRow | None:
        """The token with this secret, also if it has expired. For a secret that was replaced, it
        has the expiry of that one."""
        # Looked up by its digest: how long that takes tells nothing about the secret.
        rows = self._select(
            "SELECT id, role, patterns, created_time, expires_time FROM token WHERE digest = ?1 "
            "UNION ALL SELECT id, role, patterns, created_time, previous_expires_time FROM token "
            "WHERE previous_digest = ?1",
            digest,
        )
        return _token_row(rows[0]) if rows else None

    def tokens(self) -> list[TokenRow]:
        return [
            _token_row(row)
            for row in self._select(
                "SELECT id, role, patterns, created_time, expires_time FROM token ORDER BY 4"
            )
        ]

    def token_state(self) -> list[tuple[Any, ...]]:
        """Another value after any token was created, rotated or revoked."""
        return self._select("SELECT * FROM token ORDER BY id")


def _token_row(row: tuple[Any, ...]) -> TokenRow:
    token_id, role, patterns, created_time, expires_time = row
    return TokenRow(token_id, role, tuple(patterns.split("\n")), created_time, expires_time)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)


def _insert_progress(
    connection: sqlite3.Connection,
    stream_id: str,
    progress: Iterable[ExportProgress],
    on_conflict: Literal["REPLACE", "IGNORE"] = "REPLACE",
) -> None:
    connection.executemany(
        f"INSERT OR {on_conflict} INTO export_progress VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - one of two words
        [with_checksum(stream_id, *export) for export in progress],
    )


def _change_uploads(connection: sqlite3.Connection, change: UploadChange) -> None:
    connection.executemany("DELETE FROM upload WHERE id = ?", [(each,) for each in change.removed])
    connection.executemany(
        "INSERT OR REPLACE INTO upload VALUES (?, ?, ?, ?)",
        [
            (each.id, each.export_id, each.upload.sequence_number, msgspec.json.encode(each))
            for each in change.stored
        ],
    )
