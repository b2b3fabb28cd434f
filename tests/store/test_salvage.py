"""Salvage: a root of its own, with everything that could be read."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from penstock.errors import StoreError
from penstock.model import ExportDefinition, KinesisConfig, Persistence
from penstock.store.log import Log
from penstock.store.record import data_path, index_path
from penstock.store.rows import ExportProgress, TokenRow
from penstock.store.salvage import salvage
from penstock.store.segment import DamagedError
from penstock.store.store import Store
from penstock.store.verification import verify
from tests.store.conftest import Define

MESSAGES = 25


def payload(number: int) -> bytes:
    return f"{number:05d}".encode() * 20


@pytest.fixture
def root(tmp_path: Path, define: Define) -> Path:
    """A closed store: messages 0..9 and 10..19 are sealed, 20..24 active."""
    root = tmp_path / "root"
    store = Store(root)
    exports = ExportDefinition(kinesis=[KinesisConfig("k", "cloud")])
    log = store.create(define(export_definition=exports)).log
    for number in range(MESSAGES):
        log.append([payload(number)], 1000 + number)
    store.create(define("memory", persistence=Persistence.Memory))
    store.work()
    store.commit_progress({"s": [ExportProgress("k", last_exported=7)]})
    store.catalog.add_token(TokenRow("t", "admin", ("*",), 5), "secret")
    store.close()
    (root / "token").write_text("first\n")
    return root


def directory_of(root: Path) -> Path:
    (directory,) = (path for path in (root / "streams").iterdir() if any(path.iterdir()))
    return directory


def overwrite(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(b"!")


def read_numbers(log: Log) -> dict[int, tuple[int, bytes]]:
    found = {}
    for number in range(log.oldest, log.end):
        try:
            run = log.read(number, number + 1, 1 << 20)
        except DamagedError:
            continue
        found[number] = run.ingest_times[0], run.payloads[0]
    return found


def expected(without: set[int]) -> dict[int, tuple[int, bytes]]:
    return {
        number: (1000 + number, payload(number))
        for number in range(MESSAGES)
        if number not in without
    }


def test_intact_root_is_copied_as_it_is(root: Path, tmp_path: Path) -> None:
    result = salvage(root, tmp_path / "out")
    assert (result.streams, result.messages) == (2, MESSAGES)
    assert not result.report.has_damage
    assert (tmp_path / "out" / "token").read_text() == "first\n"
    assert not verify(tmp_path / "out").has_damage
    store = Store(tmp_path / "out")
    stream = store.streams["s"]
    assert read_numbers(stream.log) == expected(set())
    assert stream.log.end == MESSAGES
    assert stream.log.append([b"next"], 1) == MESSAGES
    assert stream.progress["k"].last_exported == 7
    assert set(store.streams) == {"s", "memory"}
    assert [token.id for token in store.catalog.tokens()] == ["t"]
    store.close()


def test_damaged_messages_keep_their_numbers(root: Path, tmp_path: Path) -> None:
    directory = directory_of(root)
    overwrite(data_path(directory, 0), 350)
    overwrite(index_path(directory, 0), 9 * 16 + 4)
    data_path(directory, 10).unlink()
    overwrite(data_path(directory, 20), 410)
    lost = {3, 9, *range(10, 20), 24}
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

    result = salvage(root, tmp_path / "out")

    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert result.messages == MESSAGES - len(lost)
    assert result.report.damaged_messages == len(lost)
    for _ in range(2):
        store = Store(tmp_path / "out")
        log = store.streams["s"].log
        assert read_numbers(log) == expected(lost)
        assert log.oldest == 0
        assert log.end == MESSAGES
        store.close()
    # What was damaged before is all that is damaged now.
    assert verify(tmp_path / "out").damaged_messages == len(lost)


@pytest.mark.parametrize("state", ["garbage", "missing", "damaged"])
def test_streams_are_copied_without_a_catalog(root: Path, tmp_path: Path, state: str) -> None:
    catalog = root / "catalog.sqlite"
    if state == "missing":
        catalog.unlink()
    elif state == "garbage":
        catalog.write_bytes(b"no database" * 500)
    else:
        # An index that does not match its table.
        connection = sqlite3.connect(catalog)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("DELETE FROM sqlite_schema WHERE name = 'segment'")
        connection.commit()
        connection.close()

    result = salvage(root, tmp_path / "out")

    assert result.messages == MESSAGES
    store = Store(tmp_path / "out")
    assert read_numbers(store.streams["s"].log) == expected(set())
    if state == "damaged":
        assert store.streams["s"].progress["k"].last_exported == 7
        assert [token.id for token in store.catalog.tokens()] == ["t"]
    store.close()


def test_directory_without_a_definition_is_copied_under_a_new_name(
    root: Path, tmp_path: Path
) -> None:
    directory = directory_of(root)
    copy = shutil.copytree(directory, directory.with_name("0123456789abcdef"))
    (copy / "stream.json").unlink()
    salvage(root, tmp_path / "out")
    store = Store(tmp_path / "out")
    log = store.streams["salvaged-0123456789abcdef"].log
    assert read_numbers(log) == read_numbers(store.streams["s"].log)
    store.close()


def test_patterns_choose_streams(root: Path, tmp_path: Path) -> None:
    salvage(root, tmp_path / "out", patterns=["mem*"])
    store = Store(tmp_path / "out")
    assert set(store.streams) == {"memory"}
    assert store.unreadable == {}
    store.close()


def test_numbers_of_a_lost_active_segment_are_not_used_again(root: Path, tmp_path: Path) -> None:
    directory = directory_of(root)
    data_path(directory, 20).unlink()
    index_path(directory, 20).unlink()
    salvage(root, tmp_path / "out")
    store = Store(tmp_path / "out")
    assert store.streams["s"].log.append([b"x"], 1) >= MESSAGES
    store.close()


def test_places_that_cannot_be_used_are_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(StoreError, match="is not empty"):
        salvage(root, tmp_path / "full")
    with pytest.raises(StoreError, match="is below"):
        salvage(root, root / "out")
    store = Store(root)
    with pytest.raises(StoreError, match="a broker serves"):
        salvage(root, tmp_path / "out")
    store.close()
    assert not (tmp_path / "out").exists()


def test_damaged_definition_is_taken_from_its_copy(root: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(root / "catalog.sqlite")
    connection.execute("UPDATE stream SET definition = x'00' WHERE name = 's'")
    connection.commit()
    connection.close()
    salvage(root, tmp_path / "out")
    store = Store(tmp_path / "out")
    assert read_numbers(store.streams["s"].log) == expected(set())
    assert store.streams["s"].progress["k"].last_exported == 7
    store.close()
