"""The catalog: one SQLite database for everything but messages, with one transaction per change.

It holds definitions, sealed segments, checkpoints of active segments, export progress, uploads,
tokens, and reserved sequence numbers. A commit is on the disk when it returns.
All methods may be called from any thread. Another process (the command line) may have the same
database open.

Changes wait for the disk and for each other, so the event loop must not run them. Look-ups use
their own connection and do not wait for commits.

A commit appends to SQLite's write-ahead log (WAL). So that commits work on a full disk, the WAL has
a minimum size from the start, and the database has free pages; see `preallocate`. A commit that
finds no space runs a WAL checkpoint, so that the next commit reuses the space of the WAL. If that
does not help, changes that must succeed also use the store's reserve: deleting and
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
# More than the minimum, so that not every used page is replaced in its own transaction.
_SPARE_PAGES = 64
_PAGE_BYTES = 4096


def is_disk_full(error: BaseException) -> bool:
    """Whether SQLite failed because the disk had no space."""
    codes = sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) in codes


_Change = Callable[Concatenate["Catalog", P], T]


def _retried(*, uses_reserve: bool = False) -> Callable[[_Change[P, T]], _Change[P, T]]:
    """Decorates a change: `Catalog.change` runs it and retries it on a full disk."""

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
    """Whether damaged contents cause the error, instead of the disk or another process."""
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
        """Opens or creates the catalog; raises sqlite3.DatabaseError if the file is damaged.

        `release_reserve` frees space on a full disk, for changes that must succeed. It returns
        False if there is no reserve.
        """
        self._path = path
        self._release_reserve = release_reserve
        # The thread whose transaction is open.
        self._writer: int | None = None
        self._lock = threading.RLock()
        self._definition_changes = 0
        # Definition changes in the open transaction.
        self._open_definition_changes = 0
        # False until the table `commits` exists.
        self._counts_commits = False
        self._connection = _connect(path)
        try:
            self._prepare()
            # In WAL mode a reader does not wait for a commit of another connection.
            self._reader = _connect(path)
        except UnicodeDecodeError as error:
            # SQLite's error messages contain names from the file.
            self._connection.close()
            raise sqlite3.DatabaseError(f"it contains text that is not UTF-8: {error}") from None
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
                f"supports {SCHEMA_VERSION}): run that version, or restore a backup"
            )
        if version < 0:
            raise sqlite3.DatabaseError(f"its version number is invalid: {version}")
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
        """A number that changes when this or another process changes the catalog."""
        return int(self._select("PRAGMA data_version")[0][0])

    def preallocate(self) -> None:
        """Allocates the space that commits on a full disk need. Called from a background thread."""
        wal = self._path.with_name(f"{self._path.name}-wal")
        with self._lock:
            (spare,) = self._connection.execute("PRAGMA freelist_count").fetchone()
            if spare < _MIN_SPARE_PAGES:
                with self.transaction() as connection:
                    connection.execute("CREATE TABLE spare (pages BLOB)")
                    size = _SPARE_PAGES * _PAGE_BYTES
                    connection.execute("INSERT INTO spare VALUES (zeroblob(?))", (size,))
                    connection.execute("DROP TABLE spare")
                self._checkpoint_wal()
            if wal.exists() and wal.stat().st_size >= _WAL_BYTES:
                return
            # The transaction prevents other processes from writing to the WAL. SQLite treats zeros
            # after the last frame as the end of the WAL, like a torn frame.
            with self.transaction():
                descriptor = os.open(wal, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    size = os.fstat(descriptor).st_size
                    os.pwrite(descriptor, bytes(max(_WAL_BYTES - size, 0)), size)
                    os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)

    def _checkpoint_wal(self) -> None:
        """Runs a WAL checkpoint, so that the next commit reuses the space of the WAL."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def change(self, change: Callable[[], T], *, uses_reserve: bool) -> T:
        """Runs a change. If the disk is full, frees space and retries the change.

        A change inside a transaction is retried together with the whole transaction.
        """
        if self._writer == threading.get_ident():
            return change()
        try:
            return change()
        except sqlite3.Error as error:
            if not is_disk_full(error):
                raise
        self._checkpoint_wal()
        try:
            return change()
        except sqlite3.Error as error:
            if not (is_disk_full(error) and uses_reserve and self._release_reserve()):
                raise
        self._checkpoint_wal()
        return change()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commits all changes inside the block, or none of them."""
        with self._lock:
            if self._connection.in_transaction:
                # The lock is held, so the transaction belongs to this thread.
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
                # If COMMIT itself failed (a full disk), SQLite may have rolled back already.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._writer = None

    def _select(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        with self._reader_lock:
            return self._reader.execute(query, arguments).fetchall()

    def state(self) -> tuple[int, ...]:
        """A value that differs after any change by this or another process."""
        return (self._connection.total_changes, self.data_version())

    def definition_state(self) -> tuple[int, ...]:
        """A value that differs after a change of definitions or tokens."""
        # Other processes also change tokens.
        [(count, checksums)] = self._select("SELECT count(*), total(checksum) FROM token")
        return (self._definition_changes, count, int(checksums))

    def restore_rows(self, tables: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
        """Inserts rows of another catalog, including rows of unknown streams."""
        self._connection.execute("PRAGMA foreign_keys = OFF")
        with self.transaction() as connection:
            if tables.get("commits"):
                connection.execute("DELETE FROM commits")
            for table, rows in tables.items():
                is_checked = table in CHECKED_COLUMNS
                for row in rows:
                    values = with_checksum(*row) if is_checked else row
                    placeholders = ", ".join("?" * len(values))
                    # Damage may have duplicated a unique name or digest.
                    insert = f"INSERT OR IGNORE INTO {table} VALUES ({placeholders})"  # noqa: S608 - a constant
                    connection.execute(insert, values)
        self._connection.execute("PRAGMA foreign_keys = ON")

    def remove_orphans(self) -> None:
        """Removes rows of unknown streams."""
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
        """Stores a new definition and its exports.

        Kept exports keep their stored progress, which may be ahead of `kept`. Moved exports get a
        new sequence number and id, and keep their counters.
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
        """Reserves the numbers below `end`: they are never assigned again."""
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
        """Adds sealed and synced segments; does nothing if their stream has been deleted."""
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
        """Removes the segments below `oldest`. Their files may be removed after this."""
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
        """Adds gaps: numbers [first, end) that have no messages and never get any."""
        with self.transaction() as connection:
            connection.executemany(
                "INSERT INTO gap VALUES (?, ?, ?, ?)",
                [with_checksum(stream_id, *gap) for gap in gaps],
            )

    def gaps(self) -> dict[str, list[tuple[int, int]]]:
        """Gaps by stream id, sorted."""
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
        """Records the synced part of each active segment, which recovery does not verify again."""
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
        """Stores the progress of exports of any streams in one transaction.

        Progress of deleted streams and of replaced exports is ignored. Their uploads are stored,
        because they must be aborted.
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
                logger.error("ignoring a damaged upload in the catalog: %s", error)
        return uploads

    @_retried()
    def abandon_uploads(self, uploads: Collection[UploadProgress]) -> None:
        """Updates uploads that have not been removed."""
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
        """Replaces the secret of a token; returns whether the token exists.

        The old secret expires at `grace_end`, or earlier with the token. An even older secret is
        no longer valid, even if its grace period has not ended.
        """
        with self.transaction() as connection:
            self._open_definition_changes += 1
            # The right-hand sides of an UPDATE are the values from before it.
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
        """The token with this secret, even if it has expired. With a replaced secret, it has the
        expiry time of that secret."""
        # A look-up by digest is safe: its duration reveals nothing about the secret.
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
        """A value that differs after a token was created, rotated or revoked."""
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
