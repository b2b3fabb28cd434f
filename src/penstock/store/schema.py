"""The tables of the catalog, the checksums of their rows, and migrations of older catalogs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.store.record import crc32

CATALOG_FILE = "catalog.sqlite"
SCHEMA_VERSION = 6

_UPLOADS = """
CREATE TABLE upload (               -- unfinished uploads, also of deleted streams
    id TEXT PRIMARY KEY,
    export_id TEXT NOT NULL,
    sequence_number INTEGER NOT NULL,
    state BLOB NOT NULL             -- JSON
) STRICT, WITHOUT ROWID;
"""

_GAPS = """
CREATE TABLE gap (                  -- numbers [first, end) whose messages a salvage could not read
    stream_id TEXT NOT NULL REFERENCES stream ON DELETE CASCADE,
    first INTEGER NOT NULL,
    end INTEGER NOT NULL,
    checksum INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (stream_id, first)
) STRICT, WITHOUT ROWID;
"""

_COMMITS = """
CREATE TABLE commits (              -- one row, to find the newer of two catalogs
    id INTEGER PRIMARY KEY CHECK (id = 1),
    number INTEGER NOT NULL,
    checksum INTEGER NOT NULL DEFAULT 0
) STRICT;
"""
_NO_COMMITS = "INSERT INTO commits VALUES (1, 0, row_checksum(1, 0))"

SCHEMA = f"""
CREATE TABLE stream (
    id TEXT PRIMARY KEY,            -- also the name of its directory
    name TEXT NOT NULL UNIQUE,
    definition BLOB NOT NULL,       -- JSON, with the field names of the wire
    oldest INTEGER NOT NULL,        -- all messages below were removed
    reserved INTEGER NOT NULL,      -- no number below is assigned again after a restart
    checksum INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE segment (              -- sealed and synced segments
    stream_id TEXT NOT NULL REFERENCES stream ON DELETE CASCADE,
    first INTEGER NOT NULL,
    end INTEGER NOT NULL,
    size INTEGER NOT NULL,
    oldest_time INTEGER NOT NULL,
    newest_time INTEGER NOT NULL,
    data_crc INTEGER NOT NULL,
    index_crc INTEGER NOT NULL,
    checksum INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (stream_id, first)
) STRICT, WITHOUT ROWID;
CREATE TABLE checkpoint (           -- the synced part of the active segment
    stream_id TEXT PRIMARY KEY REFERENCES stream ON DELETE CASCADE,
    first INTEGER NOT NULL,
    end INTEGER NOT NULL,
    size INTEGER NOT NULL,
    oldest_time INTEGER NOT NULL,
    newest_time INTEGER NOT NULL,
    data_crc INTEGER NOT NULL,
    index_crc INTEGER NOT NULL,
    checksum INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TABLE export_progress (
    stream_id TEXT NOT NULL REFERENCES stream ON DELETE CASCADE,
    identifier TEXT NOT NULL,
    last_exported INTEGER NOT NULL, -- -1 before the first
    last_time INTEGER,
    error_message TEXT NOT NULL,
    exported_bytes INTEGER NOT NULL,
    processed_messages INTEGER NOT NULL,
    skipped_messages INTEGER NOT NULL DEFAULT 0,
    export_id TEXT NOT NULL DEFAULT '',
    checksum INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (stream_id, identifier)
) STRICT, WITHOUT ROWID;
CREATE TABLE removed_directory (    -- directories of deleted streams that may still exist
    stream_id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
CREATE TABLE token (
    id TEXT PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    role TEXT NOT NULL,
    patterns TEXT NOT NULL,         -- one per line
    created_time INTEGER NOT NULL,
    expires_time INTEGER,           -- NULL: never
    previous_digest BLOB,           -- before the last rotation
    previous_expires_time INTEGER,  -- NULL: never
    checksum INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
{_UPLOADS}{_GAPS}{_COMMITS}{_NO_COMMITS}"""

# Tables whose rows have a checksum over all other columns, and these columns. SQLite does not
# detect a flipped bit in a row, which could remove segments, repeat exports or widen a token's
# access.
CHECKED_COLUMNS = {
    "stream": "id, name, definition, oldest, reserved",
    "segment": "stream_id, first, end, size, oldest_time, newest_time, data_crc, index_crc",
    "checkpoint": "stream_id, first, end, size, oldest_time, newest_time, data_crc, index_crc",
    "export_progress": "stream_id, identifier, last_exported, last_time, error_message, "
    "exported_bytes, processed_messages, skipped_messages, export_id",
    "token": "id, digest, role, patterns, created_time, expires_time, previous_digest, "
    "previous_expires_time",
    "gap": "stream_id, first, end",
    "commits": "id, number",
}

# Tables without checksums before version 5.
_UNCHECKED_TABLES = ("stream", "segment", "checkpoint", "export_progress", "token")

# Statements that migrate a catalog to the next version, by its current version.
MIGRATIONS = {
    1: (
        "ALTER TABLE export_progress ADD COLUMN skipped_messages INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE export_progress ADD COLUMN export_id TEXT NOT NULL DEFAULT ''",
    ),
    2: (_UPLOADS,),
    3: (
        "ALTER TABLE token ADD COLUMN expires_time INTEGER",
        "ALTER TABLE token ADD COLUMN previous_digest BLOB",
        "ALTER TABLE token ADD COLUMN previous_expires_time INTEGER",
    ),
    4: (
        *(
            f"ALTER TABLE {table} ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0"
            for table in _UNCHECKED_TABLES
        ),
        *(
            f"UPDATE {table} SET checksum = row_checksum({CHECKED_COLUMNS[table]})"  # noqa: S608 - constants
            for table in _UNCHECKED_TABLES
        ),
    ),
    5: (_GAPS, _COMMITS, _NO_COMMITS),
}


def row_checksum(*columns: Any) -> int:
    """The CRC-32 of a row. Also available as a function in SQL."""
    return crc32(msgspec.msgpack.encode(columns))


def is_intact(row: Sequence[Any]) -> bool:
    """Whether the last column of a row is the checksum of the others."""
    try:
        return bool(row_checksum(*row[:-1]) == row[-1])
    except (ValueError, OverflowError, msgspec.MsgspecError):
        # For example text that is not UTF-8.
        return False


def with_checksum(*columns: Any) -> tuple[Any, ...]:
    return *columns, row_checksum(*columns)


def check_rows(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError if a row has changed since it was written."""
    connection.create_function("row_checksum", -1, row_checksum, deterministic=True)
    for table, columns in CHECKED_COLUMNS.items():
        damaged = connection.execute(
            f"SELECT count(*) FROM {table} WHERE checksum <> row_checksum({columns})"  # noqa: S608 - constants
        ).fetchone()[0]
        if damaged:
            raise sqlite3.DatabaseError(f"table {table} has damaged rows: {damaged}")
    # These tables have no checksums, but must be readable.
    connection.execute("SELECT * FROM removed_directory").fetchall()
    connection.execute("SELECT * FROM upload").fetchall()
