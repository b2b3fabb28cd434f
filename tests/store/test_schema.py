"""Checksums of the catalog's rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.store.catalog import Catalog
from penstock.store.rows import StreamRow
from penstock.store.schema import (
    CATALOG_FILE,
    CHECKED_COLUMNS,
    check_rows,
    is_intact,
    with_checksum,
)

ROW = ("id", 1, b"\0\xff", None)


@pytest.mark.parametrize(
    "changed", [("id2", *ROW[1:]), ("id", 0, *ROW[2:]), (*ROW[:2], b"\0", None), (*ROW[:3], 0)]
)
def test_checksum_covers_every_column(changed: tuple[object, ...]) -> None:
    *_, checksum = with_checksum(*ROW)
    assert is_intact((*ROW, checksum))
    assert not is_intact((*changed, checksum))


def test_text_that_is_not_utf8_is_not_intact() -> None:
    assert not is_intact(("\udcff", 0))


@pytest.mark.parametrize("table", CHECKED_COLUMNS)
def test_checksum_follows_the_checked_columns(tmp_path: Path, table: str) -> None:
    """Rows are inserted in the order of the columns."""
    Catalog(tmp_path / CATALOG_FILE).close()
    with closing(sqlite3.connect(tmp_path / CATALOG_FILE)) as connection:
        columns = [each[1] for each in connection.execute(f"PRAGMA table_info({table})")]
    assert columns == [*CHECKED_COLUMNS[table].split(", "), "checksum"]


def test_changed_row_is_found(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / CATALOG_FILE)
    catalog.add_stream(StreamRow("id1", "s", b"{}", 0, 0))
    catalog.close()
    with closing(sqlite3.connect(tmp_path / CATALOG_FILE)) as connection:
        check_rows(connection)
        connection.execute("UPDATE stream SET oldest = 64")
        with pytest.raises(sqlite3.DatabaseError, match="table stream has damaged rows: 1"):
            check_rows(connection)
