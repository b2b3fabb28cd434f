"""Verification of stores that are intact, damaged, killed, or in use."""

from __future__ import annotations

import random
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import StoreError
from penstock.model import Persistence, StrategyOnFull
from penstock.store.record import data_path, index_path
from penstock.store.schema import SCHEMA_VERSION
from penstock.store.segment import DamagedError
from penstock.store.store import Store
from penstock.store.verification import (
    ReadThrottle,
    StreamReport,
    Verification,
    VerificationReport,
    verify,
)
from tests.store.conftest import Define, change_unchecked

# Segments of 1024 bytes hold 10 messages: 0..9 and 10..19 are sealed, 20..24 active.
SIZE = 100
MESSAGES = 25


@pytest.fixture
def root(tmp_path: Path, define: Define) -> Path:
    """The root of a closed store."""
    root = tmp_path / "root"
    fill(root, define).close()
    return root


def fill(root: Path, define: Define, *, flush_on_write: bool = False) -> Store:
    store = Store(root)
    definition = define(stream_segment_size=1024, flush_on_write=flush_on_write)
    log = store.create(definition).log
    for number in range(MESSAGES):
        log.append([payload(number)], 1000 + number)
    store.work()
    return store


def payload(number: int) -> bytes:
    return f"{number:05d}".encode() * (SIZE // 5)


def directory_of(root: Path) -> Path:
    (directory,) = (root / "streams").iterdir()
    return directory


def contents(root: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [root, *root.rglob("*")]
    }


def kill(root: Path, define: Define, *, flush_on_write: bool = False) -> Path:
    """The root of a killed store."""
    store = fill(root.with_name("living"), define, flush_on_write=flush_on_write)
    if flush_on_write:
        store.streams["s"].log.flush()
    killed = shutil.copytree(root.with_name("living"), root.with_name("killed"))
    store.close()
    return killed


def only_stream(report: VerificationReport) -> StreamReport:
    (stream,) = report.streams
    return stream


def damaged_numbers(report: VerificationReport) -> set[int]:
    return {
        number
        for stream in report.streams
        for each in stream.damage
        for number in range(each.first_sequence_number, each.last_sequence_number + 1)
    }


def change_byte(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (found,) = file.read(1)
        file.seek(position)
        file.write(bytes([found ^ 0x10]))


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def execute(root: Path, statement: str) -> None:
    connection = sqlite3.connect(root / "catalog.sqlite")
    with connection:
        connection.execute(statement)
    connection.close()


def test_intact_store_has_no_findings(root: Path) -> None:
    report = verify(root)
    stream = only_stream(report)
    assert not report.has_damage
    assert (report.problems, report.notes) == ([], [])
    assert (stream.name, stream.intact_messages, stream.segments) == ("s", MESSAGES, 3)
    assert (stream.oldest_sequence_number, stream.end_sequence_number) == (0, MESSAGES)
    assert stream.bytes == MESSAGES * SIZE


def test_closed_store_is_not_changed(root: Path) -> None:
    before = contents(root)
    verify(root)
    assert contents(root) == before


def test_killed_store_is_not_changed(tmp_path: Path, define: Define) -> None:
    killed = kill(tmp_path / "root", define)
    assert (killed / "catalog.sqlite-wal").stat().st_size > 0
    before = contents(killed)
    report = verify(killed)
    # Only the write-ahead log of the catalog lists the segments as sealed.
    assert not report.has_damage, report
    assert only_stream(report).intact_messages == MESSAGES
    assert contents(killed) == before


@pytest.mark.parametrize(
    ("damage", "numbers", "reason"),
    [
        (lambda d: change_byte(data_path(d, 0), 350), {3}, "checksum does not match"),
        (lambda d: change_byte(data_path(d, 20), 150), {21}, "checksum does not match"),
        # The checksum of message 12, then the end position of message 4.
        (lambda d: change_byte(index_path(d, 10), 2 * 16 + 4), {12}, "checksum does not match"),
        (lambda d: change_byte(index_path(d, 0), 4 * 16), {4, 5}, "checksum does not match"),
        (lambda d: truncate(index_path(d, 10), 5 * 16 + 3), {15, 16, 17, 18, 19}, "index entry"),
        (lambda d: truncate(index_path(d, 20), 0), {20, 21, 22, 23, 24}, "index entry is missing"),
        (lambda d: truncate(data_path(d, 0), 950), {9}, "payload is missing"),
        (lambda d: truncate(data_path(d, 20), 401), {24}, "payload is missing"),
        (lambda d: data_path(d, 10).unlink(), set(range(10, 20)), "10.data is missing"),
        (lambda d: index_path(d, 0).unlink(), set(range(10)), "0.index is missing"),
        (lambda d: data_path(d, 20).unlink(), {20, 21, 22, 23, 24}, "20.data is missing"),
    ],
)
def test_damage_is_reported_by_number_and_reason(
    root: Path, damage: Callable[[Path], None], numbers: set[int], reason: str
) -> None:
    damage(directory_of(root))
    report = verify(root)
    stream = only_stream(report)
    assert damaged_numbers(report) == numbers
    assert reason in stream.damage[0].reason
    assert stream.damaged_messages == len(numbers)
    assert stream.intact_messages == MESSAGES - len(numbers)


def test_reported_damage_matches_unreadable_messages(root: Path, tmp_path: Path) -> None:
    chance = random.Random(15)
    for turn in range(25):
        copy = shutil.copytree(root, tmp_path / f"copy{turn}")
        files = [path for path in sorted(directory_of(copy).iterdir()) if path.suffix != ".json"]
        for _ in range(chance.randrange(1, 4)):
            path = chance.choice(files)
            change_byte(path, chance.randrange(path.stat().st_size))
        found = damaged_numbers(verify(copy))
        store = Store(copy)
        unreadable = set()
        for number in range(MESSAGES):
            try:
                store.streams["s"].log.read(number, number + 1, 1 << 20)
            except DamagedError:
                unreadable.add(number)
        store.close()
        # The last payload of a file is served even if its end position is too large.
        assert unreadable <= found <= unreadable | {9, 19, 24}


def test_adjacent_damage_is_one_range(root: Path) -> None:
    for number in (3, 4, 5):
        change_byte(data_path(directory_of(root), 0), number * SIZE)
    (damage,) = only_stream(verify(root)).damage
    assert (damage.first_sequence_number, damage.last_sequence_number) == (3, 5)
    assert damage.file == str(data_path(directory_of(root), 0).relative_to(root))


def test_messages_larger_than_a_piece_are_checked(tmp_path: Path, define: Define) -> None:
    root = tmp_path / "root"
    store = Store(root)
    log = store.create(define(stream_segment_size=8 << 20, max_size=16 << 20)).log
    for number in range(3):
        log.append([bytes([number]) * (5 << 19)], 1)
    store.close()
    assert only_stream(verify(root)).intact_messages == 3
    change_byte(data_path(directory_of(root), 0), (5 << 19) + (2 << 20))
    assert damaged_numbers(verify(root)) == {1}


def test_segment_that_is_missing_in_catalog_and_directory_is_a_gap(root: Path) -> None:
    directory = directory_of(root)
    data_path(directory, 10).unlink()
    index_path(directory, 10).unlink()
    execute(root, "DELETE FROM segment WHERE first = 10")
    report = verify(root)
    assert damaged_numbers(report) == set(range(10, 20))
    assert only_stream(report).damage[0].reason == "no segment holds this number"


def test_segments_without_catalog_rows_are_checked_by_message(root: Path) -> None:
    execute(root, "DELETE FROM segment")
    assert not verify(root).has_damage
    change_byte(data_path(directory_of(root), 10), 0)
    assert damaged_numbers(verify(root)) == {10}


def test_catalog_row_that_contradicts_its_files_is_reported(root: Path) -> None:
    execute(root, "UPDATE segment SET data_crc = data_crc + 1 WHERE first = 0")
    execute(root, "UPDATE segment SET end = 4000 WHERE first = 10")
    execute(root, "UPDATE stream SET oldest = 64")
    report = verify(root)
    assert damaged_numbers(report) == set()
    assert only_stream(report).intact_messages == MESSAGES
    reasons = [problem.reason for problem in report.problems]
    assert any("do not match the files, whose messages are intact" in each for each in reasons)
    assert any("segment 10 of 's' cannot end at 4000" in each for each in reasons)
    assert any(
        "oldest number of 's' is 64, but there are segments from 0" in each for each in reasons
    )


@pytest.mark.parametrize("state", ["garbage", "missing", "truncated"])
def test_segments_are_checked_without_a_catalog(root: Path, state: str) -> None:
    catalog = root / "catalog.sqlite"
    if state == "missing":
        catalog.unlink()
    elif state == "garbage":
        catalog.write_bytes(b"no database" * 500)
    else:
        truncate(catalog, 5000)
    change_byte(data_path(directory_of(root), 10), 0)
    report = verify(root)
    assert report.problems[0].file == "catalog.sqlite"
    stream = only_stream(report)
    assert (stream.name, stream.intact_messages) == ("s", MESSAGES - 1)
    assert damaged_numbers(report) == {10}


def test_directory_without_catalog_row_is_reported_and_checked(root: Path) -> None:
    directory = directory_of(root)
    copy = shutil.copytree(directory, directory.with_name("0123456789abcdef"))
    (root / "streams" / "fedcba9876543210").mkdir()
    report = verify(root)
    assert [problem.file for problem in report.problems] == [str(copy.relative_to(root))]
    assert [note.file for note in report.notes] == ["streams/fedcba9876543210"]
    assert [stream.intact_messages for stream in report.streams] == [MESSAGES, MESSAGES]


@pytest.mark.parametrize("written", [b"{", b'{"name": "\xff"}'], ids=["truncated", "not UTF-8"])
def test_damaged_definitions_are_reported(root: Path, written: bytes) -> None:
    (directory_of(root) / "stream.json").write_bytes(written)
    (problem,) = verify(root).problems
    assert problem.file.endswith("stream.json")
    assert problem.reason.startswith("is damaged: ")
    execute(root, "UPDATE stream SET definition = x'00'")
    report = verify(root)
    assert len(report.problems) == 3
    assert only_stream(report).intact_messages == MESSAGES


def test_other_files_are_reported_as_notes(root: Path) -> None:
    directory = directory_of(root)
    (directory / f"{data_path(directory, 7).name}.lost").write_bytes(b"x")
    (directory / "notes.txt").write_bytes(b"x")
    report = verify(root)
    assert [note.reason for note in report.notes] == [
        "renamed by recovery",
        "not a Penstock file",
    ]
    assert not report.has_damage


def test_interrupted_appends_are_not_damage(tmp_path: Path, define: Define) -> None:
    killed = kill(tmp_path / "root", define)
    truncate(data_path(directory_of(killed), 20), 450)
    report = verify(killed)
    assert not report.has_damage
    assert only_stream(report).intact_messages == MESSAGES - 1
    (note,) = report.notes
    assert "1 messages at its end were not written completely" in note.reason


def test_journal_records_replace_messages_lost_in_a_power_cut(
    tmp_path: Path, define: Define
) -> None:
    killed = kill(tmp_path / "root", define, flush_on_write=True)
    directory = directory_of(killed)
    truncate(data_path(directory, 20), 0)
    truncate(index_path(directory, 20), 0)
    before = contents(killed)
    report = verify(killed)
    assert not report.has_damage
    assert only_stream(report).intact_messages == MESSAGES
    assert contents(killed) == before


def test_memory_streams_are_not_checked(tmp_path: Path, define: Define) -> None:
    store = Store(tmp_path)
    store.create(define("m", persistence=Persistence.Memory)).log.append([b"x"], 1)
    store.close()
    report = verify(tmp_path)
    assert only_stream(report).is_in_memory
    assert not report.has_damage


def test_patterns_choose_streams(tmp_path: Path, define: Define) -> None:
    store = Store(tmp_path)
    for name in ("wind-1", "wind-2", "sun"):
        store.create(define(name))
    store.close()
    assert [each.name for each in verify(tmp_path, patterns=["wind-*"]).streams] == [
        "wind-1",
        "wind-2",
    ]
    assert [each.name for each in verify(tmp_path, patterns=["sun", "x"]).streams] == ["sun"]


def test_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a store"):
        verify(tmp_path)


def test_no_false_alarms_beside_a_store_in_use(tmp_path: Path, define: Define) -> None:
    """The store begins, seals and drops segments, and creates and deletes streams meanwhile."""
    store = Store(tmp_path)
    definition = define(
        max_size=4000,
        stream_segment_size=1024,
        strategy_on_full=StrategyOnFull.OverwriteOldestData,
    )
    log = store.create(definition).log
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            store.work()

    def use() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            for _ in range(10):
                log.append([payload(number)] * 3, number)
            store.create(define(f"brief-{number}")).log.append([b"x"], number)
            if number > 3:
                store.delete(f"brief-{number - 3}")

    threads = [threading.Thread(target=work), threading.Thread(target=use)]
    for thread in threads:
        thread.start()
    reports: list[VerificationReport] = []
    try:
        # At least until retention has dropped a segment, which takes long on a busy machine.
        while len(reports) < 8 or not log.oldest:
            reports.append(Verification(tmp_path).run())
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    store.close()
    assert all(report.is_served for report in reports)
    assert [report for report in reports if report.has_damage] == []
    assert not verify(tmp_path).has_damage


def test_damage_is_found_beside_a_store_in_use(tmp_path: Path, define: Define) -> None:
    store = fill(tmp_path, define)
    change_byte(data_path(directory_of(tmp_path), 0), 0)
    change_byte(data_path(directory_of(tmp_path), 20), 450)
    report = Verification(tmp_path, pause=lambda _: None).run()
    store.close()
    assert damaged_numbers(report) == {0, 24}


def overwrite_oldest(store: Store, count: int = 50) -> None:
    """Appends until all earlier segments are dropped, and removes their files."""
    for number in range(count):
        store.streams["s"].log.append([payload(number)], 2000)
    store.work()


@pytest.mark.parametrize("overwritten", [20, 50, 200])
@pytest.mark.parametrize("damaged", [0, 24])
def test_messages_overwritten_during_the_check_are_not_counted(
    tmp_path: Path, define: Define, overwritten: int, damaged: int
) -> None:
    store = Store(tmp_path)
    log = store.create(define(max_size=4000)).log
    for number in range(35):
        log.append([payload(number)], 1000)
    store.work()
    first = damaged // 10 * 10
    change_byte(data_path(directory_of(tmp_path), first), (damaged - first) * SIZE)
    read = 0

    def overwrite_once(count: int) -> None:
        nonlocal read
        if not read:
            overwrite_oldest(store, overwritten)
        read += count

    # More messages are overwritten during the checks that confirm damage.
    report = Verification(
        tmp_path, meter=overwrite_once, pause=lambda _: overwrite_oldest(store, 20)
    ).run()
    oldest = log.oldest
    store.close()
    stream = only_stream(report)
    assert oldest > 0
    assert 0 < stream.oldest_sequence_number <= oldest
    numbers = stream.end_sequence_number - stream.oldest_sequence_number
    assert stream.intact_messages + stream.damaged_messages == numbers
    assert stream.missing_messages == 0
    assert stream.damaged_messages == sum(each.count for each in stream.damage)
    assert all(
        stream.oldest_sequence_number <= number < stream.end_sequence_number
        for number in damaged_numbers(report)
    )
    assert stream.bytes == stream.intact_messages * SIZE


def test_throttle_limits_bytes_per_second() -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    throttle = ReadThrottle(1000, clock=lambda: now, sleep=sleep)
    for _ in range(50):
        throttle(100)
    assert now == pytest.approx(5.0)


@pytest.mark.parametrize("value", ["NULL", "7"])
def test_name_that_is_not_utf8_is_damage_of_the_catalog(root: Path, value: str) -> None:
    add_row = "INSERT INTO stream VALUES ('0123456789abcdef', 't', x'7b7d', 0, 0, 0)"
    execute(root, add_row)
    change_unchecked(root, "stream", f"UPDATE stream SET name = {value} WHERE name = 's'")
    report = verify(root)
    assert "catalog.sqlite" in {problem.file for problem in report.problems}
    assert [stream.intact_messages for stream in report.streams if stream.name == "s"] == [MESSAGES]


def test_segment_row_without_numbers_is_damage_of_the_catalog(root: Path) -> None:
    change_unchecked(root, "segment", "UPDATE segment SET size = NULL")
    report = verify(root)
    assert "catalog.sqlite" in {problem.file for problem in report.problems}
    assert only_stream(report).intact_messages == MESSAGES


def test_schema_that_is_not_utf8_is_damage_of_the_catalog(root: Path) -> None:
    path = root / "catalog.sqlite"
    path.write_bytes(path.read_bytes().replace(b"TABLE segment", b"T\xe5BLE segment", 1))
    report = verify(root)
    assert {problem.file for problem in report.problems} == {"catalog.sqlite"}
    assert only_stream(report).intact_messages == MESSAGES


@pytest.mark.parametrize(
    "version", [SCHEMA_VERSION | 64, SCHEMA_VERSION - (1 << 31), SCHEMA_VERSION & ~2]
)
def test_wrong_version_number_is_damage_of_the_catalog(root: Path, version: int) -> None:
    execute(root, f"PRAGMA user_version = {version}")
    before = contents(root)
    report = verify(root)
    (problem,) = report.problems
    assert problem.file == "catalog.sqlite"
    assert "version" in problem.reason
    assert only_stream(report).intact_messages == MESSAGES
    assert contents(root) == before


def test_newer_catalog_without_a_copy_is_refused(root: Path) -> None:
    execute(root, f"PRAGMA user_version = {SCHEMA_VERSION | 64}")
    (root / "catalog.backup.sqlite").unlink()
    with pytest.raises(StoreError, match="newer Penstock"):
        verify(root)


@pytest.mark.parametrize("is_moved", [True, False])
def test_rebuilt_catalog_is_read_before_it_is_renamed(root: Path, is_moved: bool) -> None:
    catalog = root / "catalog.sqlite"
    (root / "catalog.sqlite.rebuilt-11").write_bytes(b"no database" * 500)
    shutil.copyfile(catalog, root / "catalog.sqlite.rebuilt-12")
    if is_moved:
        catalog.rename(root / "catalog.sqlite.damaged-12")
    else:
        catalog.write_bytes(b"no database" * 500)
        (root / "catalog.sqlite-wal").write_bytes(b"no log" * 1000)
    before = contents(root)
    report = verify(root)
    assert report.problems == []
    assert "catalog.sqlite.rebuilt-12" in {note.file for note in report.notes}
    assert (only_stream(report).name, only_stream(report).intact_messages) == ("s", MESSAGES)
    assert contents(root) == before
