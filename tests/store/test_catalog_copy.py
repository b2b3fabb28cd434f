"""Damage to the catalog removes no messages, and its copy keeps tokens and progress."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from penstock.errors import StoreError
from penstock.model import (
    ExportDefinition,
    KinesisConfig,
    MessageStreamDefinition,
    Persistence,
    StrategyOnFull,
)
from penstock.store.catalog import Catalog, NewerCatalogError
from penstock.store.catalog_copy import (
    COPY_FILE,
    CatalogCopier,
    RemainingRows,
    copy_catalog,
    is_rebuilt,
    rebuild_catalog,
)
from penstock.store.files import Disk
from penstock.store.rows import ExportProgress, StreamRow, TokenRow, digest_token
from penstock.store.schema import CATALOG_FILE, SCHEMA_VERSION
from penstock.store.store import Store
from tests.faulty_disk import FaultyDisk
from tests.store.conftest import Define, Restartable
from tests.support import TIMEOUT_S

# PENSTOCK_DAMAGED_CATALOGS sets the number of runs.
SEEDS = range(int(os.environ.get("PENSTOCK_DAMAGED_CATALOGS", "30")))

NAMES = ("s", "t")
TOKEN = TokenRow("device", "producer", ("press-*",), 5)


def definition_of(name: str) -> MessageStreamDefinition:
    return MessageStreamDefinition(
        name=name,
        max_size=1 << 20,
        stream_segment_size=1024,
        strategy_on_full=StrategyOnFull.OverwriteOldestData,
        time_to_live_millis=60_000,
        export_definition=ExportDefinition(kinesis=[KinesisConfig("k", "x")]),
    )


def payload(name: str, number: int) -> bytes:
    return b"%s %d " % (name.encode(), number) + bytes([number]) * 300


def fill(store: Store) -> None:
    for name in NAMES:
        log = store.create(definition_of(name)).log
        for number in range(20):
            log.append([payload(name, number)], 1000 + number)
    memory = MessageStreamDefinition(
        name="m",
        persistence=Persistence.Memory,
        strategy_on_full=StrategyOnFull.OverwriteOldestData,
    )
    store.create(memory).log.append([b"x"] * 3, 1)
    store.catalog.add_token(TOKEN, "secret")
    store.commit_progress({name: [ExportProgress("k", 7)] for name in NAMES})


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("filled") / "root"
    store = Store(root)
    fill(store)
    store.close()
    return root


@pytest.fixture
def stopped(filled: Path, root: Path) -> Path:
    """A root after a clean stop."""
    return Path(shutil.copytree(filled, root))


def segment_files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in (root / "streams").rglob("*")
        if path.suffix in (".data", ".index")
    }


def check_messages(store: Store, names: tuple[str, ...] = NAMES) -> None:
    for name in names:
        log = store.streams[name].log
        assert log.oldest == 0
        for number in range(20):
            run = log.read(number, number + 1, 1)
            assert run.payloads == [payload(name, number)]
            assert run.ingest_times == [1000 + number]
        assert log.append([b"next"], 1000) == 20


def check_everything(root: Path) -> None:
    """Checks that every file, message, token, progress and number is unchanged."""
    before = segment_files(root)
    store = Store(root)
    try:
        # Retention does this at a start.
        for stream in store.streams.values():
            stream.log.trim(2000)
        store.work()
        assert before.items() <= segment_files(root).items()
        check_messages(store)
        assert store.streams["m"].log.append([b"y"], 1) >= 3
        assert store.catalog.find_token(digest_token("secret")) == TOKEN
        for name in NAMES:
            assert store.streams[name].progress["k"].last_exported == 7
        assert set(store.streams) == {*NAMES, "m"}
        assert not store.unreadable
    finally:
        store.close()


def flip(contents: bytearray, random: Random) -> None:
    contents[random.randrange(len(contents))] ^= 1 << random.randrange(8)


def overwrite(contents: bytearray, random: Random) -> None:
    start = random.randrange(len(contents))
    size = random.choice((1, 100, 5000))
    contents[start : start + size] = random.randbytes(len(contents[start : start + size]))


def zero(contents: bytearray, random: Random) -> None:
    start = random.randrange(len(contents))
    size = random.choice((16, 4096))
    contents[start : start + size] = bytes(len(contents[start : start + size]))


def truncate(contents: bytearray, random: Random) -> None:
    del contents[random.randrange(len(contents)) :]


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_catalog_with_a_copy_loses_nothing(stopped: Path, seed: int) -> None:
    random = Random(seed)
    path = stopped / CATALOG_FILE
    contents = bytearray(path.read_bytes())
    random.choice((flip, flip, flip, overwrite, zero, truncate))(contents, random)
    path.write_bytes(bytes(contents))
    check_everything(stopped)


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_catalog_without_a_copy_loses_no_messages(stopped: Path, seed: int) -> None:
    random = Random(seed)
    (stopped / COPY_FILE).unlink()
    path = stopped / CATALOG_FILE
    contents = bytearray(path.read_bytes())
    random.choice((flip, flip, flip, overwrite, zero, truncate))(contents, random)
    path.write_bytes(bytes(contents))
    before = segment_files(stopped)
    try:
        store = Store(stopped)
    except NewerCatalogError:
        # The version number is damaged, and only the copy has the correct one.
        assert segment_files(stopped) == before
        return
    for stream in store.streams.values():
        stream.log.trim(2000)
    store.work()
    assert before.items() <= segment_files(stopped).items()
    check_messages(store)
    store.close()


@pytest.mark.parametrize("column", ["oldest", "reserved", "definition", "name", "id"])
def test_changed_stream_row_is_restored(
    stopped: Path, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    value = {
        "oldest": "64",
        "reserved": "1 << 40",
        "definition": "CAST(replace(CAST(definition AS TEXT), '1048576', '1024') AS BLOB)",
        "name": "'u'",
        "id": "'0123456789abcdef'",
    }[column]
    with closing(sqlite3.connect(stopped / CATALOG_FILE)) as connection:
        connection.execute(f"UPDATE stream SET {column} = {value} WHERE name = 's'")
        connection.commit()
    check_everything(stopped)
    assert "the catalog is damaged (table stream has damaged rows: 1)" in caplog.text
    assert len(list(stopped.glob("catalog.sqlite.damaged-*"))) == 1


def test_oldest_that_contradicts_the_segments_removes_nothing(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The row is intact, as in a catalog that was damaged before it had checksums."""
    catalog = Catalog(stopped / CATALOG_FILE)
    for row in catalog.streams():
        with catalog.transaction() as connection:
            connection.execute(
                "UPDATE stream SET oldest = 7, "
                "checksum = row_checksum(id, name, definition, 7, reserved) WHERE id = ?",
                (row.id,),
            )
    catalog.close()
    check_everything(stopped)
    assert "the catalog has no messages below 7" in caplog.text


def test_damaged_catalog_stays_until_the_new_one_is_written(stopped: Path) -> None:
    """A failed start must not lose rows that are newer than the copy."""
    (stopped / COPY_FILE).unlink()
    with closing(sqlite3.connect(stopped / CATALOG_FILE)) as connection:
        connection.execute("UPDATE stream SET oldest = 64 WHERE name = 's'")
        connection.commit()
    obstacle = stopped / f"{CATALOG_FILE}.new"
    obstacle.mkdir()
    with pytest.raises(StoreError):
        Store(stopped)
    obstacle.rmdir()
    store = Store(stopped)
    assert store.catalog.find_token(digest_token("secret")) == TOKEN
    assert store.streams["t"].progress["k"].last_exported == 7
    store.close()


# Starts a store and exits without clean-up before the given step: a rename or the opening of a
# database. Exits with 0 if there are fewer steps.
CRASHING_START = """
import os, sys
from pathlib import Path
from penstock.store.store import Store

left = int(sys.argv[2])

def crash(event, arguments):
    global left
    if event in ("os.rename", "sqlite3.connect"):
        if left == 0:
            os._exit(77)
        left -= 1

sys.addaudithook(crash)
Store(Path(sys.argv[1]))
os._exit(0)
"""


def crash_at_each_step(
    root: Path, caplog: pytest.LogCaptureFixture, check: Callable[[Path], None]
) -> None:
    """Checks a root after a crash at each step of a start."""
    pristine = Path(shutil.copytree(root, root.with_name("pristine")))
    for step in range(100):
        shutil.rmtree(root)
        shutil.copytree(pristine, root)
        crashed = subprocess.run(
            [sys.executable, "-c", CRASHING_START, str(root), str(step)],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        caplog.clear()
        check(root)
        assert "the catalog is damaged" in crashed.stderr + caplog.text
        assert not [*root.glob(f"{CATALOG_FILE}.rebuilt-*"), *root.glob(f"{CATALOG_FILE}.new*")]
        if crashed.returncode == 0:
            assert step > 5
            return
        assert crashed.returncode == 77
    pytest.fail("it never ended")


def test_crash_during_a_rebuild_without_a_copy_loses_no_row(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(root)
    fill(store)
    with closing(sqlite3.connect(root / CATALOG_FILE)) as connection:
        connection.execute("UPDATE stream SET oldest = 64 WHERE name = 's'")
        connection.commit()
        # As after a kill: all rows are in the write-ahead log.
        killed = Path(shutil.copytree(root, tmp_path / "killed"))
    store.close()

    def check(root: Path) -> None:
        store = Store(root)
        check_messages(store)
        assert store.catalog.find_token(digest_token("secret")) == TOKEN
        assert store.streams["t"].progress["k"].last_exported == 7
        store.close()
        (damaged,) = root.glob(f"{CATALOG_FILE}.damaged-*")
        with closing(sqlite3.connect(damaged)) as connection:
            assert connection.execute("SELECT 1 FROM stream WHERE oldest = 64").fetchall()

    crash_at_each_step(killed, caplog, check)


def test_crash_during_a_rebuild_does_not_keep_stale_rows(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = (stopped / COPY_FILE).read_bytes()
    store = Store(stopped)
    store.streams["m"].log.append([b"x"] * 5, 1)
    store.delete("s")
    store.work()
    store.close()
    (stopped / COPY_FILE).write_bytes(copy)
    (stopped / CATALOG_FILE).write_bytes(b"damaged" * 1000)

    def check(root: Path) -> None:
        store = Store(root)
        check_messages(store, ("t",))
        assert set(store.streams) == {"t", "m"}
        assert store.streams["m"].log.append([b"y"], 1) >= 8
        assert store.catalog.find_token(digest_token("secret")) == TOKEN
        store.close()

    crash_at_each_step(stopped, caplog, check)


def test_incomplete_rebuilt_catalog_is_not_used(stopped: Path) -> None:
    (stopped / CATALOG_FILE).unlink()
    readers = []

    def keep_reader_open(catalog: Catalog, _rows: RemainingRows) -> None:
        # While the reader is open, SQLite does not move the write-ahead log into the database.
        reader = sqlite3.connect(stopped / f"{CATALOG_FILE}.new")
        reader.execute("SELECT * FROM stream").fetchall()
        readers.append(reader)
        assert catalog.streams()

    with pytest.raises(sqlite3.OperationalError, match="could not be written completely"):
        rebuild_catalog(stopped, Disk(), keep_reader_open)

    assert not is_rebuilt(stopped)
    readers[0].close()
    check_everything(stopped)


def kill_and_damage_log(store: Store) -> Path:
    """Copies the root of a killed store, with a flipped bit in the first frame of the WAL."""
    copy_catalog(store.root, Disk())
    killed = store.root.with_name("killed")
    shutil.copytree(store.root, killed)
    log = killed / f"{CATALOG_FILE}-wal"
    contents = bytearray(log.read_bytes())
    contents[32 + 24 + 100] ^= 1
    log.write_bytes(contents)
    return killed


def test_lost_commits_are_restored_from_the_copy(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(root)
    fill(store)
    killed = kill_and_damage_log(store)

    check_everything(killed)

    assert "the catalog has lost its last changes" in caplog.text
    assert list(killed.glob(f"{CATALOG_FILE}.damaged-*-wal"))
    store.close()


@pytest.mark.parametrize("is_page_damaged", [False, True])
def test_rows_removed_by_lost_commits_are_not_restored(root: Path, is_page_damaged: bool) -> None:
    store = Store(root)
    fill(store)
    store.create(definition_of("gone"))
    store.catalog.add_token(TokenRow("revoked", "admin", ("*",), 5), "old")
    with closing(sqlite3.connect(root / CATALOG_FILE)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    store.delete("gone")
    store.catalog.remove_token("revoked")
    killed = kill_and_damage_log(store)
    if is_page_damaged:
        with closing(sqlite3.connect(root / CATALOG_FILE)) as connection:
            query = "SELECT rootpage FROM sqlite_schema WHERE name = 'removed_directory'"
            (page,) = connection.execute(query).fetchone()
        with (killed / CATALOG_FILE).open("r+b") as file:
            file.seek((page - 1) * 4096)
            file.write(bytes(4096))

    restarted = Store(killed)

    assert sorted(restarted.streams) == ["m", "s", "t"]
    assert restarted.catalog.find_token(digest_token("old")) is None
    assert restarted.catalog.find_token(digest_token("secret")) == TOKEN
    restarted.close()
    store.close()


def test_missing_catalog_is_restored_from_its_copy(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (stopped / CATALOG_FILE).unlink()
    check_everything(stopped)
    assert "catalog.sqlite is missing: it was rebuilt from the copy of" in caplog.text


def test_empty_catalog_is_restored_from_its_copy(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite treats an empty file as a new database."""
    (stopped / CATALOG_FILE).write_bytes(b"")
    check_everything(stopped)
    assert "catalog.sqlite is empty and was moved to" in caplog.text


def test_missing_catalog_and_copy_lose_no_messages(stopped: Path) -> None:
    (stopped / CATALOG_FILE).unlink()
    (stopped / COPY_FILE).unlink()
    store = Store(stopped)
    check_messages(store)
    store.close()


@pytest.mark.parametrize("damage", [flip, overwrite, zero, truncate])
def test_damaged_copy_does_not_matter_while_the_catalog_is_intact(
    stopped: Path, damage: Callable[[bytearray, Random], None]
) -> None:
    contents = bytearray((stopped / COPY_FILE).read_bytes())
    damage(contents, Random(1))
    (stopped / COPY_FILE).write_bytes(bytes(contents))
    check_everything(stopped)


def test_damage_of_catalog_and_copy_is_logged(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (CATALOG_FILE, COPY_FILE):
        with closing(sqlite3.connect(stopped / name)) as connection:
            connection.execute("UPDATE token SET role = 'admin'")
            connection.commit()
    Store(stopped).close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "table token has damaged rows: 1" in line
    assert "The copy is damaged as well: some rows are lost" in line


def test_row_restored_from_the_copy_is_logged_once(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(stopped / CATALOG_FILE)) as connection:
        connection.execute("UPDATE token SET role = 'admin'")
        connection.commit()
    check_everything(stopped)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "table token has damaged rows: 1" in line
    assert "copy is damaged" not in line


def test_definition_restored_from_its_file_is_logged(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        closing(Catalog(stopped / CATALOG_FILE)) as catalog,
        catalog.transaction() as connection,
    ):
        connection.execute(
            "UPDATE stream SET definition = x'7b', "
            "checksum = row_checksum(id, name, x'7b', oldest, reserved) WHERE name = 's'"
        )
    check_everything(stopped)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("stream 's': the definition in the catalog is damaged (")


@pytest.mark.parametrize("version", [SCHEMA_VERSION | 64, SCHEMA_VERSION - (1 << 31)])
def test_wrong_version_number_is_damage_if_the_copy_has_this_version(
    stopped: Path, version: int
) -> None:
    with closing(sqlite3.connect(stopped / CATALOG_FILE)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    check_everything(stopped)


def age_copy(restartable: Restartable, change: Callable[[Store], None]) -> None:
    """Stops the store after a change, with the copy from before it and a damaged catalog."""
    restartable.restart()
    copy = (restartable.root / COPY_FILE).read_bytes()
    change(restartable.store)
    restartable.stop()
    (restartable.root / COPY_FILE).write_bytes(copy)
    (restartable.root / CATALOG_FILE).write_bytes(b"damaged" * 1000)


def test_stream_deleted_after_the_copy_is_not_restored(
    restartable: Restartable, define: Define, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("deleted", "kept"):
        restartable.store.create(define(name)).log.append([b"x"], 1)

    def delete(store: Store) -> None:
        store.delete("deleted")
        store.work()

    age_copy(restartable, delete)
    assert list(restartable.start().streams) == ["kept"]
    assert "stream 'deleted' in the catalog's copy has no directory" in caplog.text


def test_streams_and_messages_after_the_copy_are_kept(
    restartable: Restartable, define: Define
) -> None:
    old = restartable.store.create(define("old"))
    old.log.append([b"x" * 1000] * 3, 1)

    def append(store: Store) -> None:
        store.create(define("new")).log.append([b"y"] * 3, 1)
        for _ in range(5):
            store.streams["old"].log.append([b"x" * 1000], 1)

    age_copy(restartable, append)
    store = restartable.start()
    assert store.streams["new"].log.append([b"z"], 1) == 3
    assert store.streams["old"].log.append([b"z"], 1) == 8
    for number in range(8):
        assert store.streams["old"].log.read(number, 8, 1).payloads == [b"x" * 1000]


def test_segments_removed_after_the_copy_are_not_reported_as_lost(
    restartable: Restartable, define: Define, caplog: pytest.LogCaptureFixture
) -> None:
    stream = restartable.store.create(define(max_size=4096))
    for _ in range(4):
        stream.log.append([b"x" * 1000], 1)

    def overwrite_oldest(store: Store) -> None:
        for _ in range(4):
            store.streams["s"].log.append([b"y" * 1000], 1)
        store.work()

    age_copy(restartable, overwrite_oldest)
    log = restartable.start().streams["s"].log
    assert (log.oldest, log.end) == (4, 8)
    assert "lost" not in caplog.text
    assert "is missing: messages" not in caplog.text


def test_numbers_of_a_memory_stream_are_not_used_again(
    restartable: Restartable, define: Define
) -> None:
    restartable.store.create(define(persistence=Persistence.Memory)).log.append([b"x"], 1)

    def append(store: Store) -> None:
        store.streams["s"].log.append([b"x"] * 1000, 1)

    age_copy(restartable, append)
    assert restartable.start().streams["s"].log.append([b"y"], 1) > 1001


def test_progress_falls_back_to_the_copy(restartable: Restartable, define: Define) -> None:
    exports = ExportDefinition(kinesis=[KinesisConfig("k", "x")])
    restartable.store.create(define(export_definition=exports)).log.append([b"x"] * 9, 1)
    restartable.store.commit_progress({"s": [ExportProgress("k", 3)]})

    age_copy(restartable, lambda store: store.commit_progress({"s": [ExportProgress("k", 8)]}))
    assert restartable.start().streams["s"].progress["k"].last_exported == 3


def test_only_damaged_progress_rows_come_from_the_copy(
    restartable: Restartable, define: Define
) -> None:
    exports = ExportDefinition(kinesis=[KinesisConfig("k", "x"), KinesisConfig("l", "x")])
    restartable.store.create(define(export_definition=exports)).log.append([b"x"] * 9, 1)
    both = [ExportProgress("k", 3), ExportProgress("l", 3)]
    restartable.store.commit_progress({"s": both})
    restartable.restart()
    copy = (restartable.root / COPY_FILE).read_bytes()
    restartable.store.commit_progress({"s": [each._replace(last_exported=8) for each in both]})
    restartable.stop()
    (restartable.root / COPY_FILE).write_bytes(copy)
    with closing(sqlite3.connect(restartable.root / CATALOG_FILE)) as connection:
        connection.execute("UPDATE export_progress SET last_exported = 72 WHERE identifier = 'k'")
        connection.commit()
    progress = restartable.start().streams["s"].progress
    assert {name: each.last_exported for name, each in progress.items()} == {"k": 3, "l": 8}


def test_directory_of_a_listed_stream_is_not_removed(
    restartable: Restartable, define: Define, caplog: pytest.LogCaptureFixture
) -> None:
    stream = restartable.store.create(define())
    stream.log.append([b"x"], 1)
    restartable.stop()
    with closing(sqlite3.connect(restartable.root / CATALOG_FILE)) as connection:
        connection.executemany(
            "INSERT INTO removed_directory VALUES (?)", [(stream.id,), ("",), ("..",)]
        )
        connection.commit()
    store = restartable.start()
    assert store.streams["s"].log.read(0, 1, 1).payloads == [b"x"]
    assert "'' is not the id of a deleted stream" in caplog.text
    assert store.catalog.removed_directories() == []


def test_unfinished_creation_is_removed_only_if_it_is_empty_and_new(
    restartable: Restartable,
) -> None:
    restartable.stop()
    directory = restartable.root / "streams" / "0123456789abcdef"
    directory.mkdir()
    (directory / f"{500:020d}.data").touch()
    restartable.start()
    assert directory.exists()


# The catalog copier


class CopierClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> CopierClock:
    return CopierClock()


def names_in(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM stream")]


def test_definitions_are_copied_sooner_than_other_changes(
    catalog: Catalog, tmp_path: Path, clock: CopierClock
) -> None:
    copier = CatalogCopier(catalog, tmp_path, Disk(), clock)
    copy = tmp_path / COPY_FILE
    copier.copy_if_due()
    assert not copy.exists()
    clock.now += 10
    copier.copy_if_due()
    assert names_in(copy) == []

    catalog.add_stream(StreamRow("id1", "s", b"{}", 0, 0))
    copier.copy_if_due()
    assert names_in(copy) == []
    clock.now += 10
    copier.copy_if_due()
    assert names_in(copy) == ["s"]
    assert copy.stat().st_mode & 0o777 == 0o600

    catalog.reserve("id1", 5)
    clock.now += 10
    before = copy.read_bytes()
    copier.copy_if_due()
    assert copy.read_bytes() == before
    clock.now += 300
    copier.copy_if_due()
    assert copy.read_bytes() != before


def test_token_changes_of_other_processes_are_copied(
    catalog: Catalog, tmp_path: Path, clock: CopierClock
) -> None:
    catalog.add_token(TOKEN, "secret")
    copier = CatalogCopier(catalog, tmp_path, Disk(), clock)
    copier.copy()
    clock.now += 10
    other = Catalog(tmp_path / CATALOG_FILE)
    other.remove_token(TOKEN.id)
    other.close()
    copier.copy_if_due()
    with closing(sqlite3.connect(tmp_path / COPY_FILE)) as connection:
        assert connection.execute("SELECT count(*) FROM token").fetchone() == (0,)


def test_failed_copy_is_logged_once_and_keeps_the_previous_one(
    catalog: Catalog, tmp_path: Path, clock: CopierClock, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyDisk()
    copier = CatalogCopier(catalog, tmp_path, disk, clock)
    copier.copy()
    before = (tmp_path / COPY_FILE).read_bytes()
    disk.fails = lambda action, _path: action == "sync"
    for name in ("a", "b"):
        catalog.add_stream(StreamRow(name, name, b"{}", 0, 0))
        copier.copy()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert (tmp_path / COPY_FILE).read_bytes() == before
    assert not list(tmp_path.glob("*.new*"))
    disk.mend()
    copier.copy()
    assert names_in(tmp_path / COPY_FILE) == ["a", "b"]


def test_damaged_rows_are_not_copied(catalog: Catalog, tmp_path: Path, clock: CopierClock) -> None:
    catalog.add_stream(StreamRow("id1", "s", b"{}", 0, 0))
    copier = CatalogCopier(catalog, tmp_path, Disk(), clock)
    copier.copy()
    with closing(sqlite3.connect(tmp_path / CATALOG_FILE)) as connection:
        connection.execute("UPDATE stream SET name = 'x'")
        connection.commit()
    copier.copy()
    assert names_in(tmp_path / COPY_FILE) == ["s"]


def test_unchanged_catalog_is_not_copied_again(
    catalog: Catalog, tmp_path: Path, clock: CopierClock
) -> None:
    copier = CatalogCopier(catalog, tmp_path, Disk(), clock)
    copier.copy()
    (tmp_path / COPY_FILE).unlink()
    copier.copy()
    assert not (tmp_path / COPY_FILE).exists()
