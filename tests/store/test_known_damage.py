"""Known damage of a stream, from recovery and reads."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.store.files import Disk
from penstock.store.known_damage import DamagedSpan, KnownDamage
from penstock.store.record import data_path, index_path
from penstock.store.segment import DamagedError
from penstock.store.store import Store
from tests.store.conftest import Define


def test_numbers_are_counted_once() -> None:
    known = KnownDamage("s")
    known.add(5, 8, "a")
    known.add(6, 7, "a")
    known.add(8, 10, "a")
    known.add(3, 12, "b")
    known.add(20, 21, "c")
    assert known.count == 10
    assert known.ranges() == [
        DamagedSpan(3, 5, "b"),
        DamagedSpan(5, 10, "a"),
        DamagedSpan(10, 12, "b"),
        DamagedSpan(20, 21, "c"),
    ]


def test_gaps_are_not_damage() -> None:
    known = KnownDamage("s", gaps=[(3, 5), (8, 9)])
    known.add(3, 5, "a")
    known.add(8, 9, "a")
    assert known.count == 0
    known.add(2, 10, "b")
    assert known.ranges() == [
        DamagedSpan(2, 3, "b"),
        DamagedSpan(5, 8, "b"),
        DamagedSpan(9, 10, "b"),
    ]


def test_dropped_messages_are_forgotten() -> None:
    known = KnownDamage("s")
    known.add(5, 8, "a")
    known.add(10, 20, "b")
    known.forget_below(12)
    assert (known.count, known.ranges()) == (8, [DamagedSpan(12, 20, "b")])
    known.forget_below(20)
    assert (known.count, known.ranges()) == (0, [])


def test_memory_is_bounded() -> None:
    known = KnownDamage("s")
    for number in range(0, 5000, 2):
        known.add(number, number + 1, "a", is_logged=True)
    assert len(known.ranges()) <= 1000
    assert known.ranges()[-1].end == 4999
    assert known.count == sum(each.end - each.first for each in known.ranges())


def test_each_range_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    known = KnownDamage("s")
    known.add(0, 1, "read twice")
    known.add(0, 1, "read twice")
    known.add(4, 9, "logged by recovery", is_logged=True)
    assert [(each.levelno, each.getMessage()) for each in caplog.records] == [
        (logging.ERROR, "stream 's': damaged message 0: read twice")
    ]


def test_log_lines_are_limited_per_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    known = KnownDamage("s", clock=lambda: now)
    for number in range(0, 100, 2):
        known.add(number, number + 1, "a")
    assert len(caplog.records) == 10
    now += 61
    known.add(200, 203, "b")
    assert [each.getMessage() for each in caplog.records[10:]] == [
        "stream 's': 40 more damaged ranges were found",
        "stream 's': damaged messages 200 to 202: b",
    ]


@pytest.fixture
def root(tmp_path: Path, define: Define) -> Path:
    """A closed store: messages 0..9 and 10..19 are sealed, 20..24 active."""
    root = tmp_path / "root"
    store = Store(root)
    log = store.create(define()).log
    for number in range(25):
        log.append([bytes([number + 1]) * 100], number)
    store.work()
    store.close()
    return root


def directory_of(root: Path) -> Path:
    (directory,) = (root / "streams").iterdir()
    return directory


def overwrite(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(b"!")


def test_reads_add_unreadable_messages(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    overwrite(data_path(directory_of(root), 0), 350)
    store = Store(root)
    log = store.streams["s"].log
    assert log.damage.count == 0
    for _ in range(2):
        with pytest.raises(DamagedError):
            log.read(3, 4, 1000)
    assert log.damage.ranges() == [DamagedSpan(3, 4, "its checksum does not match")]
    assert [each.getMessage() for each in caplog.records] == [
        "stream 's': damaged message 3: its checksum does not match"
    ]
    log.find_damage(0, 100)
    assert log.damage.count == 1
    store.close()


def test_recovery_adds_damage(root: Path) -> None:
    directory = directory_of(root)
    data_path(directory, 0).unlink()
    with index_path(directory, 10).open("r+b") as file:
        file.truncate(7 * 16)
    with index_path(directory, 20).open("r+b") as file:
        file.truncate(2 * 16)
    store = Store(root)
    store.work()
    log = store.streams["s"].log
    assert log.damage.count == 10 + 3 + 3
    assert {(each.first, each.end) for each in log.damage.ranges()} >= {(0, 10), (17, 20)}
    # Reads find the same damage.
    log.find_damage(0, 25)
    assert log.damage.count == 10 + 3 + 3
    store.close()


def test_shortened_files_are_found_while_the_file_pool_is_full(root: Path) -> None:
    with data_path(directory_of(root), 10).open("r+b") as file:
        file.truncate(450)
    disk = Disk()
    disk.pool.capacity = 1
    disk.pool.bind()
    store = Store(root, disk)
    with ThreadPoolExecutor(1) as background:
        background.submit(store.work).result()
    assert [(each.first, each.end) for each in store.streams["s"].log.damage.ranges()] == [(14, 20)]
    store.close()


def test_damage_of_dropped_messages_is_removed(root: Path, define: Define) -> None:
    data_path(directory_of(root), 0).unlink()
    store = Store(root)
    stream = store.streams["s"]
    assert stream.log.damage.count == 10
    store.update(stream, define(max_size=2600))
    stream.log.append([b"x" * 200], 100)
    assert stream.log.oldest >= 10
    assert stream.log.damage.count == 0
    store.close()
