from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.model import MessageStreamDefinition, StrategyOnFull
from penstock.store.catalog import Catalog
from penstock.store.schema import CATALOG_FILE
from penstock.store.store import Store
from tests.segments import leave_no_segments_open

__all__ = ["leave_no_segments_open"]

Define = Callable[..., MessageStreamDefinition]


@pytest.fixture
def define() -> Define:
    def definition(name: str = "s", **fields: object) -> MessageStreamDefinition:
        fields = {
            "strategy_on_full": StrategyOnFull.OverwriteOldestData,
            "stream_segment_size": 1024,
            "max_size": 1 << 20,
        } | fields
        return MessageStreamDefinition(name=name, **fields)  # type: ignore[arg-type] # by name

    return definition


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path / "catalog.sqlite")
    yield catalog
    catalog.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


class Restartable:
    """A store that can be stopped and started again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = Store(root)

    def restart(self) -> Store:
        self.store.close()
        self.store = Store(self.root)
        return self.store

    def stop(self) -> None:
        self.store.close()

    def start(self) -> Store:
        self.store = Store(self.root)
        return self.store


@pytest.fixture
def restartable(root: Path) -> Iterator[Restartable]:
    restartable = Restartable(root)
    yield restartable
    restartable.stop()


def change_unchecked(root: Path, table: str, statement: str) -> None:
    """Changes rows without the constraints of their table, like damage."""
    with closing(sqlite3.connect(root / CATALOG_FILE)) as connection:
        (schema,) = connection.execute(
            "SELECT sql FROM sqlite_schema WHERE name = ?", (table,)
        ).fetchone()
        connection.execute("PRAGMA writable_schema = ON")
        weak = schema.replace(" NOT NULL", "").replace("STRICT", "").replace(") ,", ")")
        for each in (" TEXT", " INTEGER", " BLOB"):
            weak = weak.replace(each, "")
        set_schema = "UPDATE sqlite_schema SET sql = ? WHERE name = ?"
        connection.execute(set_schema, (weak, table))
        connection.commit()
    with closing(sqlite3.connect(root / CATALOG_FILE)) as connection:
        connection.execute(statement)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(set_schema, (schema, table))
        connection.commit()
