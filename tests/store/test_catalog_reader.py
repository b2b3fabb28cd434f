"""Reading the catalog without changing the root."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import StoreError
from penstock.store.catalog_reader import CatalogReader
from penstock.store.rows import ExportProgress
from penstock.store.schema import CATALOG_FILE, SCHEMA_VERSION
from penstock.store.store import Store
from tests.store.conftest import Define, change_unchecked


def names(root: Path) -> list[str]:
    with CatalogReader(root) as catalog:
        return [row.name for row in catalog.streams()]


def listing(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_no_file_is_created_beside_a_closed_catalog(root: Path, define: Define) -> None:
    store = Store(root)
    store.create(define("s"))
    store.close()
    before = listing(root)
    assert "catalog.sqlite-wal" not in before
    assert names(root) == ["s"]
    assert listing(root) == before


def test_write_ahead_log_of_a_killed_broker_is_read(root: Path, define: Define) -> None:
    store = Store(root)
    store.create(define("s"))
    killed = shutil.copytree(root, root.with_name("killed"))
    store.close()
    log = killed / "catalog.sqlite-wal"
    before = (listing(killed), log.read_bytes())
    assert names(killed) == ["s"]
    assert (listing(killed), log.read_bytes()) == before


def test_reader_sees_changes_of_a_running_broker(root: Path, define: Define) -> None:
    store = Store(root)
    with CatalogReader(root) as catalog:
        assert catalog.streams() == []
        stream = store.create(define("s"))
        snapshot = catalog.snapshot(stream.id)
        assert snapshot is not None
        assert (snapshot.row.name, snapshot.segments, snapshot.checkpoint) == ("s", [], None)
        store.delete("s")
        assert catalog.snapshot(stream.id) is None
        assert catalog.removed_directories() == {stream.id}
    store.close()


def test_lowest_end_covers_exported_numbers(root: Path, define: Define) -> None:
    store = Store(root)
    stream = store.create(define("s"))
    store.catalog.commit_progress([(stream.id, ExportProgress("k", last_exported=41))])
    store.close()
    with CatalogReader(root) as catalog:
        snapshot = catalog.snapshot(stream.id)
    assert snapshot is not None
    assert snapshot.lowest_end == 42


def test_unreadable_catalogs_are_refused(root: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is missing"):
        CatalogReader(root)
    Store(root).close()
    (root / "catalog.backup.sqlite").unlink()
    connection = sqlite3.connect(root / "catalog.sqlite")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(StoreError, match="newer Penstock"):
        CatalogReader(root)
    (root / "catalog.sqlite").write_bytes(b"no database" * 500)
    with pytest.raises(sqlite3.DatabaseError):
        CatalogReader(root)


def test_gaps_are_read_and_version_5_has_none(root: Path, define: Define) -> None:
    store = Store(root)
    stream = store.create(define("s"))
    store.catalog.add_gaps(stream.id, [(7, 9), (3, 4)])
    store.close()
    with CatalogReader(root) as catalog:
        snapshot = catalog.snapshot(stream.id)
    assert snapshot is not None
    assert snapshot.gaps == [(3, 4), (7, 9)]
    with closing(sqlite3.connect(root / CATALOG_FILE)) as connection:
        connection.execute("DROP TABLE gap")
        connection.execute("DROP TABLE commits")
        connection.execute("PRAGMA user_version = 5")
    with CatalogReader(root) as catalog:
        snapshot = catalog.snapshot(stream.id)
        assert catalog.find_damage() == []
    assert snapshot is not None
    assert snapshot.gaps == []


def test_a_changed_row_is_damage(root: Path, define: Define) -> None:
    store = Store(root)
    store.create(define("s"))
    store.close()
    with CatalogReader(root) as catalog:
        assert catalog.find_damage() == []
    with closing(sqlite3.connect(root / CATALOG_FILE)) as connection:
        connection.execute("UPDATE stream SET oldest = 64")
        connection.commit()
    with CatalogReader(root) as catalog:
        assert catalog.find_damage() == ["table stream has damaged rows: 1"]


def change_schema(root: Path, old: bytes, new: bytes) -> None:
    """Changes bytes of the catalog that SQL statements cannot change."""
    path = root / CATALOG_FILE
    contents = path.read_bytes()
    assert old in contents
    path.write_bytes(contents.replace(old, new, 1))


def test_schema_names_that_are_not_utf8_are_damage(root: Path) -> None:
    Store(root).close()
    change_schema(root, b"CREATE TABLE segment", b"CREATE T\xe5BLE segment")
    with CatalogReader(root) as catalog:
        assert catalog.find_damage()
        with pytest.raises(sqlite3.DatabaseError):
            catalog.streams()


@pytest.mark.parametrize(
    "change",
    ["name = NULL", "name = 7", "id = 7", "id = x'00'", "id = '..'", "definition = 7"],
)
def test_invalid_stream_rows_are_damage(root: Path, define: Define, change: str) -> None:
    store = Store(root)
    store.create(define("s"))
    store.create(define("t"))
    store.close()
    change_unchecked(root, "stream", f"UPDATE stream SET {change} WHERE name = 's'")
    with CatalogReader(root) as catalog:
        assert catalog.find_damage()
        assert [row.name for row in catalog.streams()] == ["t"]


def test_values_of_the_wrong_type_raise_an_error(root: Path, define: Define) -> None:
    store = Store(root)
    stream = store.create(define("s"))
    store.catalog.add_gaps(stream.id, [(3, 4)])
    store.close()
    change_unchecked(root, "gap", "UPDATE gap SET end = 'x'")
    with CatalogReader(root) as catalog, pytest.raises(sqlite3.DatabaseError):
        catalog.snapshot(stream.id)
