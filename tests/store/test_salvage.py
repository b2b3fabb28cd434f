"""Salvage copies all readable data to a new root."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from penstock.errors import StoreError
from penstock.model import ExportDefinition, KinesisConfig, Persistence
from penstock.store.catalog import Catalog
from penstock.store.catalog_copy import COPY_FILE
from penstock.store.catalog_copy import copy_catalog as write_copy
from penstock.store.catalog_reader import CatalogReader
from penstock.store.files import Disk
from penstock.store.log import Log
from penstock.store.record import data_path, index_path
from penstock.store.rows import ExportProgress, TokenRow, digest_token
from penstock.store.salvage import salvage
from penstock.store.schema import CATALOG_FILE, SCHEMA_VERSION
from penstock.store.segment import DamagedError
from penstock.store.store import Store
from penstock.store.verification import StreamReport, verify
from tests.store.conftest import Define

MESSAGES = 25
EXPORTS = ExportDefinition(kinesis=[KinesisConfig("k", "cloud")])
TOKEN = TokenRow("t", "admin", ("*",), 5)


def payload(number: int) -> bytes:
    return f"{number:05d}".encode() * 20


@pytest.fixture
def root(tmp_path: Path, define: Define) -> Path:
    """A closed store: messages 0..9 and 10..19 are sealed, 20..24 active."""
    root = tmp_path / "root"
    store = Store(root)
    log = store.create(define(export_definition=EXPORTS)).log
    for number in range(MESSAGES):
        log.append([payload(number)], 1000 + number)
    store.create(define("memory", persistence=Persistence.Memory))
    store.work()
    store.commit_progress({"s": [ExportProgress("k", last_exported=7)]})
    store.catalog.add_token(TOKEN, "secret")
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


def overwrite_all(path: Path) -> None:
    path.write_bytes(b"!" * path.stat().st_size)


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


def test_intact_root_is_copied_unchanged(root: Path, tmp_path: Path) -> None:
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
    check_gaps(tmp_path / "out", lost)


def gaps_of(stream: StreamReport) -> set[int]:
    return {
        number
        for each in stream.gaps
        for number in range(each.first_sequence_number, each.last_sequence_number + 1)
    }


def check_gaps(root: Path, lost: set[int]) -> None:
    """Checks that unreadable messages are missing, and that nothing is damaged."""
    report = verify(root)
    assert (report.problems, report.notes, report.damaged_messages) == ([], [], 0)
    (stream,) = (each for each in report.streams if each.name == "s")
    assert gaps_of(stream) == lost
    assert report.missing_messages == stream.missing_messages == len(lost)
    assert stream.intact_messages == stream.end_sequence_number - len(lost)


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (lambda d: overwrite(data_path(d, 0), 350), {3}),
        (lambda d: overwrite(data_path(d, 20), 410), {24}),
        (lambda d: data_path(d, 0).unlink(), set(range(10))),
        (lambda d: data_path(d, 0).write_bytes(b""), set(range(10))),
        (lambda d: overwrite_all(data_path(d, 20)), set(range(20, 25))),
        (lambda d: data_path(d, 20).unlink(), set(range(20, 25 + 1024))),
        (lambda d: index_path(d, 20).unlink(), set(range(20, 25 + 1024))),
        (lambda d: index_path(d, 20).write_bytes(b""), set(range(20, 25 + 1024))),
        (lambda d: [path.unlink() for path in d.iterdir()], set(range(25 + 1024))),
    ],
)
def test_salvaged_root_has_gaps_and_no_damage(
    root: Path, tmp_path: Path, damage: Callable[[Path], None], lost: set[int]
) -> None:
    damage(directory_of(root))
    salvage(root, tmp_path / "out")
    check_gaps(tmp_path / "out", lost)
    end = max({MESSAGES - 1, *lost}) + 1
    for turn in range(2):
        store = Store(tmp_path / "out")
        log = store.streams["s"].log
        assert read_numbers(log).items() >= expected(lost).items()
        assert log.damage.count == 0
        # Enough to seal the segment, whose checksum does not match.
        for number in range(20):
            assert log.append([payload(number)], 1) == end + 20 * turn + number
        store.work()
        store.close()
        check_gaps(tmp_path / "out", lost)


def test_gaps_survive_a_second_salvage(root: Path, tmp_path: Path) -> None:
    overwrite(data_path(directory_of(root), 0), 350)
    salvage(root, tmp_path / "once")
    overwrite(data_path(directory_of(tmp_path / "once"), 10), 550)
    result = salvage(tmp_path / "once", tmp_path / "twice")
    assert (result.report.damaged_messages, result.report.missing_messages) == (1, 1)
    check_gaps(tmp_path / "twice", {3, 15})


def test_damage_to_a_salvaged_root_is_reported(root: Path, tmp_path: Path) -> None:
    directory = directory_of(root)
    overwrite(data_path(directory, 0), 350)
    index_path(directory, 10).unlink()
    salvage(root, tmp_path / "out")
    overwrite(data_path(directory_of(tmp_path / "out"), 0), 850)
    report = verify(tmp_path / "out")
    (stream,) = (each for each in report.streams if each.name == "s")
    assert gaps_of(stream) == {3, *range(10, 20)}
    # Message 3 has no payload in the new root.
    assert [(each.first_sequence_number, each.count) for each in stream.damage] == [(9, 1)]
    data_path(directory_of(tmp_path / "out"), 0).unlink()
    report = verify(tmp_path / "out")
    assert (report.damaged_messages, report.missing_messages) == (9, 11)


def test_gaps_of_removed_segments_are_removed(root: Path, tmp_path: Path) -> None:
    overwrite(data_path(directory_of(root), 0), 350)
    data_path(directory_of(root), 10).unlink()
    salvage(root, tmp_path / "out")
    catalog = Catalog(tmp_path / "out" / CATALOG_FILE)
    (row,) = (each for each in catalog.streams() if each.name == "s")
    catalog.remove_segments(row.id, 10)
    catalog.close()
    with CatalogReader(tmp_path / "out") as reader:
        snapshot = reader.snapshot(row.id)
    assert snapshot is not None
    assert snapshot.gaps == [(10, 20)]


def test_gaps_survive_damage_to_the_catalog(root: Path, tmp_path: Path) -> None:
    overwrite(data_path(directory_of(root), 0), 350)
    salvage(root, tmp_path / "out")
    Store(tmp_path / "out").close()
    (tmp_path / "out" / CATALOG_FILE).unlink()
    Store(tmp_path / "out").close()
    check_gaps(tmp_path / "out", {3})


def test_stream_without_any_definition_can_be_served(root: Path, tmp_path: Path) -> None:
    """The catalog has an empty definition for a stream whose definition was lost."""
    directory = directory_of(root)
    (directory / "stream.json").unlink()
    catalog = Catalog(root / CATALOG_FILE)
    catalog.update_stream(directory.name, b"", [], [])
    catalog.close()
    salvage(root, tmp_path / "out")
    store = Store(tmp_path / "out")
    assert read_numbers(store.streams["s"].log) == expected(set())
    store.close()
    check_gaps(tmp_path / "out", set())


@pytest.mark.parametrize("state", ["garbage", "missing", "damaged"])
def test_streams_are_copied_without_a_catalog(root: Path, tmp_path: Path, state: str) -> None:
    catalog = root / "catalog.sqlite"
    if state == "missing":
        catalog.unlink()
    elif state == "garbage":
        catalog.write_bytes(b"no database" * 500)
    else:
        # The index does not match its table.
        connection = sqlite3.connect(catalog)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("DELETE FROM sqlite_schema WHERE name = 'segment'")
        connection.commit()
        connection.close()

    (root / COPY_FILE).unlink()

    result = salvage(root, tmp_path / "out")

    assert result.messages == MESSAGES
    store = Store(tmp_path / "out")
    assert read_numbers(store.streams["s"].log) == expected(set())
    if state == "damaged":
        assert store.streams["s"].progress["k"].last_exported == 7
        assert [token.id for token in store.catalog.tokens()] == ["t"]
    store.close()


@pytest.mark.parametrize("damage", ["garbage", "missing", "empty", "directory", "version"])
def test_lost_rows_are_restored_from_the_copy(root: Path, tmp_path: Path, damage: str) -> None:
    catalog = root / CATALOG_FILE
    if damage == "version":
        with closing(sqlite3.connect(catalog)) as connection:
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION | 64}")
    else:
        catalog.unlink()
    if damage == "directory":
        catalog.mkdir()
    elif damage in ("garbage", "empty"):
        catalog.write_bytes(b"no database" * 500 if damage == "garbage" else b"")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

    result = salvage(root, tmp_path / "out")

    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert [problem.file for problem in result.report.problems] == [CATALOG_FILE]
    assert COPY_FILE in [note.file for note in result.notes] or damage == "version"
    check_everything(tmp_path / "out")


def check_everything(root: Path) -> None:
    """Checks every stream, message, token and progress."""
    store = Store(root)
    assert set(store.streams) == {"s", "memory"}
    assert read_numbers(store.streams["s"].log) == expected(set())
    assert store.streams["s"].log.end == MESSAGES
    assert store.streams["s"].definition.export_definition == EXPORTS
    assert store.streams["s"].progress["k"].last_exported == 7
    assert store.catalog.find_token(digest_token("secret")) == TOKEN
    assert store.unreadable == {}
    store.close()


@pytest.mark.parametrize("seed", range(20))
def test_damaged_catalog_with_a_copy_loses_nothing(root: Path, tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    contents = bytearray((root / CATALOG_FILE).read_bytes())
    start = random.randrange(len(contents))
    size = random.choice((1, 16, 4096, 3 * 4096))
    contents[start : start + size] = random.randbytes(len(contents[start : start + size]))
    (root / CATALOG_FILE).write_bytes(contents)
    salvage(root, tmp_path / "out")
    check_everything(tmp_path / "out")


def test_unreadable_catalog_page_loses_only_its_rows(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [f"token-{number:04d}" for number in range(300)]
    catalog = Catalog(root / CATALOG_FILE)
    with catalog.transaction():
        for each in tokens:
            catalog.add_token(TokenRow(each, "producer", ("*",), 5), each)
    catalog.close()
    (root / COPY_FILE).unlink()
    contents = (root / CATALOG_FILE).read_bytes()
    # Pages of the index have no roles.
    (bad, *_) = (
        position
        for position in range(0, len(contents), 4096)
        if all(
            part in contents[position : position + 4096] for part in (b"token-0150", b"producer")
        )
    )
    read = os.pread

    def fail(descriptor: int, size: int, position: int) -> bytes:
        is_catalog = Path(f"/proc/self/fd/{descriptor}").readlink() == root / CATALOG_FILE
        if is_catalog and position <= bad < position + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, size, position)

    monkeypatch.setattr(os, "pread", fail)
    salvage(root, tmp_path / "out")
    monkeypatch.undo()

    store = Store(tmp_path / "out")
    found = {token.id for token in store.catalog.tokens()}
    store.close()
    assert {"token-0000", "token-0299", "t"} < found
    assert 0 < len(set(tokens) - found) < 100


def test_write_ahead_log_of_a_damaged_catalog_is_read(root: Path, tmp_path: Path) -> None:
    store = Store(root)
    store.catalog.add_token(TokenRow("new", "producer", ("*",), 6), "new secret")
    killed = shutil.copytree(root, tmp_path / "killed")
    store.close()
    (killed / COPY_FILE).unlink()
    catalog = killed / CATALOG_FILE
    contents = catalog.read_bytes()
    assert b"cloud" in contents
    catalog.write_bytes(contents.replace(b"cloud", b"clouD"))
    salvage(killed, tmp_path / "out")
    store = Store(tmp_path / "out")
    assert {token.id for token in store.catalog.tokens()} == {"t", "new"}
    # The row is damaged, but a copy of the definition is beside the segments.
    assert store.streams["s"].progress["k"].last_exported == 7
    store.close()


def test_numbers_that_only_the_catalog_knows_are_not_used_again(root: Path, tmp_path: Path) -> None:
    store = Store(root)
    store.streams["memory"].log.append([b"x"] * 5, 1)
    store.close()
    (root / CATALOG_FILE).unlink()
    salvage(root, tmp_path / "out")
    store = Store(tmp_path / "out")
    assert store.streams["memory"].log.append([b"x"], 1) >= 5
    store.close()


def test_stream_deleted_after_the_copy_is_not_restored(root: Path, tmp_path: Path) -> None:
    copy = (root / COPY_FILE).read_bytes()
    store = Store(root)
    store.delete("s")
    store.work()
    store.close()
    (root / COPY_FILE).write_bytes(copy)
    (root / CATALOG_FILE).unlink()
    salvage(root, tmp_path / "out")
    store = Store(tmp_path / "out")
    assert set(store.streams) == {"memory"}
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


def test_invalid_targets_are_refused(root: Path, tmp_path: Path) -> None:
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


def test_damaged_definition_is_restored_from_its_copy(root: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(root / "catalog.sqlite")
    connection.execute("UPDATE stream SET definition = x'00' WHERE name = 's'")
    connection.commit()
    connection.close()
    salvage(root, tmp_path / "out")
    store = Store(tmp_path / "out")
    assert read_numbers(store.streams["s"].log) == expected(set())
    assert store.streams["s"].progress["k"].last_exported == 7
    store.close()


def damage_definition_file(root: Path) -> None:
    """Makes the text of a definition invalid UTF-8."""
    path = directory_of(root) / "stream.json"
    path.write_bytes(path.read_bytes().replace(b'"s"', b'"\xf3"'))


def test_definition_file_that_is_not_utf8_loses_nothing(root: Path, tmp_path: Path) -> None:
    damage_definition_file(root)
    salvage(root, tmp_path / "out")
    store = Store(tmp_path / "out")
    assert read_numbers(store.streams["s"].log) == expected(set())
    store.close()


def test_stream_without_a_readable_definition_gets_a_name(root: Path, tmp_path: Path) -> None:
    damage_definition_file(root)
    (root / CATALOG_FILE).unlink()
    (root / COPY_FILE).unlink()
    salvage(root, tmp_path / "out")
    store = Store(tmp_path / "out")
    log = store.streams[f"salvaged-{directory_of(root).name}"].log
    assert read_numbers(log) == expected(set())
    store.close()


@pytest.mark.parametrize("is_moved", [True, False])
def test_rebuilt_catalog_is_used_before_it_is_renamed(
    root: Path, tmp_path: Path, is_moved: bool
) -> None:
    catalog = root / CATALOG_FILE
    (root / COPY_FILE).unlink()
    shutil.copyfile(catalog, root / f"{CATALOG_FILE}.rebuilt-12")
    if is_moved:
        catalog.rename(root / f"{CATALOG_FILE}.damaged-12")
    else:
        overwrite_all(catalog)
        (root / f"{CATALOG_FILE}-wal").write_bytes(b"no log" * 1000)
    result = salvage(root, tmp_path / "out")
    assert not result.report.has_damage
    check_everything(tmp_path / "out")


class BrokenDiskError(Exception):
    pass


def interrupt(_: int) -> None:
    raise BrokenDiskError


@pytest.mark.parametrize("is_there", [True, False])
def test_failed_salvage_leaves_the_target_unchanged(
    root: Path, tmp_path: Path, is_there: bool
) -> None:
    out = tmp_path / "out"
    if is_there:
        out.mkdir()
    with pytest.raises(BrokenDiskError):
        salvage(root, out, meter=interrupt)
    assert out.exists() == is_there
    assert salvage(root, out).messages == MESSAGES
    check_everything(out)


def test_salvage_of_no_stream_leaves_the_target_unchanged(root: Path, tmp_path: Path) -> None:
    assert salvage(root, tmp_path / "out", patterns=["nope"]).streams == 0
    assert not (tmp_path / "out").exists()


def test_salvage_replaces_leftovers_of_a_killed_one(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "salvage.partial" / "streams" / "0123456789abcdef").mkdir(parents=True)
    salvage(root, out)
    assert not (out / "salvage.partial").exists()
    check_everything(out)


def test_lost_commits_are_restored_from_the_copy(root: Path, tmp_path: Path) -> None:
    with closing(Store(root)) as store:
        store.catalog.add_token(TokenRow("device", "producer", ("*",), 5), "secret")
        write_copy(root, Disk())
        killed = Path(shutil.copytree(root, tmp_path / "killed"))
    log = killed / f"{CATALOG_FILE}-wal"
    contents = bytearray(log.read_bytes())
    contents[32 + 24 + 100] ^= 1
    log.write_bytes(contents)

    assert "it has lost its last changes" in str(verify(killed).problems)

    result = salvage(killed, tmp_path / "out")

    assert "has lost its last changes" in str(result.report.problems)
    with closing(Catalog(tmp_path / "out" / CATALOG_FILE)) as catalog:
        assert catalog.find_token(digest_token("secret")) is not None
