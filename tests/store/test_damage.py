"""A damaged file loses only its own messages: no number and no byte on the disk."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from penstock.model import MessageStreamDefinition, StrategyOnFull
from penstock.store.files import Disk
from penstock.store.log import FileLog
from penstock.store.segment import DamagedError
from penstock.store.store import Store

# PENSTOCK_DAMAGED_STORES sets the number of runs.
SEEDS = range(int(os.environ.get("PENSTOCK_DAMAGED_STORES", "24")))


class TrackedDisk(Disk):
    """Tracks open descriptors, so that the test can close them at a kill."""

    def __init__(self) -> None:
        self.descriptors: set[int] = set()

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self.descriptors.add(descriptor)
        return descriptor

    def open(self, path: Path) -> int:
        descriptor = super().open(path)
        self.descriptors.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        self.descriptors.discard(descriptor)
        super().close(descriptor)


class BuiltStore(NamedTuple):
    """The messages of each stream of a built store, and the ends that the catalog knows."""

    messages: dict[str, list[bytes]]
    known_ends: dict[str, int]


def log_of(store: Store, name: str) -> FileLog:
    log = store.streams[name].log
    assert isinstance(log, FileLog)
    return log


def build(root: Path, random: Random) -> BuiltStore:
    """Builds two streams of one or more segments, and stops or kills the store."""
    disk = TrackedDisk()
    store = Store(root, disk)
    messages: dict[str, list[bytes]] = {}
    known_ends: dict[str, int] = {}
    for name in ("s", "t"):
        definition = MessageStreamDefinition(
            name=name,
            max_size=1 << 20,
            stream_segment_size=random.choice((1024, 1 << 18)),
            strategy_on_full=StrategyOnFull.RejectNewData,
            flush_on_write=random.random() < 0.5,
        )
        store.create(definition)
        messages[name] = []
        known_ends[name] = 0
    for _ in range(random.randint(1, 12)):
        for name, stored in messages.items():
            log = log_of(store, name)
            batch = [random.randbytes(random.randint(1, 300)) for _ in range(random.randint(1, 9))]
            log.append(batch, len(stored) + 1)
            stored.extend(batch)
            if log.journals:
                log.flush()
        if random.random() < 0.3:
            store.work()
        if random.random() < 0.3:
            store.sync()
            known_ends = {name: len(stored) for name, stored in messages.items()}
    if random.random() < 0.5:
        store.close()
        known_ends = {name: len(stored) for name, stored in messages.items()}
    else:
        store.catalog.close()
        os.close(store._lock)
        for descriptor in tuple(disk.descriptors):
            disk.close(descriptor)
    return BuiltStore(messages, known_ends)


def truncate(path: Path, random: Random) -> None:
    size = path.stat().st_size
    os.truncate(path, random.choice((0, size - 1, max(size - 16, 0), random.randrange(size))))


def flip(path: Path, random: Random) -> None:
    contents = bytearray(path.read_bytes())
    contents[random.randrange(len(contents))] ^= 1 << random.randrange(8)
    path.write_bytes(bytes(contents))


def zero(path: Path, random: Random) -> None:
    contents = bytearray(path.read_bytes())
    start = random.randrange(len(contents))
    stop = random.randint(start + 1, len(contents))
    contents[start:stop] = bytes(stop - start)
    path.write_bytes(bytes(contents))


def delete(path: Path, _: Random) -> None:
    path.unlink()


def extend(path: Path, random: Random) -> None:
    with path.open("ab") as file:
        file.write(random.randbytes(random.randint(1, 100)))


DAMAGES: list[Callable[[Path, Random], None]] = [truncate, flip, zero, delete, extend]


def contents_below(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in (root / "streams").rglob("*") if path.is_file()]


def read_range(log: FileLog, start: int, stop: int) -> Iterator[tuple[int, bytes | None]]:
    """Reads each message; None if it is damaged."""
    while start < stop:
        try:
            payloads = log.read(start, stop, 1 << 20).payloads
        except DamagedError as error:
            yield from ((number, None) for number in range(start, min(error.next_number, stop)))
            start = error.next_number
            continue
        yield from enumerate(payloads, start)
        start += len(payloads)


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_file_loses_only_its_own_messages(
    root: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    random = Random(seed)
    built = build(root, random)
    segments = sorted(
        path
        for path in (root / "streams").rglob("*")
        if path.suffix in (".data", ".index") and path.stat().st_size
    )
    damaged_file = random.choice(segments)
    damage = random.choice(DAMAGES)
    original = damaged_file.read_bytes()
    damage(damaged_file, random)
    before = contents_below(root)
    caplog.clear()

    store = Store(root)
    store.work()
    damaged_stream = damaged_file.parent.name
    damaged: dict[str, list[int]] = {}
    for name, messages in built.messages.items():
        log = log_of(store, name)
        assert log.oldest == 0
        is_damaged = store.streams[name].id == damaged_stream
        end = log.end
        assert log.append([b"new"], 1) == end
        # A number is never assigned to another message. After the last checkpoint, damage looks
        # like a torn end, so only the messages that the files still hold count.
        assert end >= (built.known_ends[name] if is_damaged else len(messages))
        read = dict(read_range(log, 0, min(end, len(messages))))
        damaged[name] = [number for number, payload in read.items() if payload is None]
        assert is_damaged or not damaged[name]
        for number, payload in read.items():
            assert payload in (None, messages[number])
        if damage in (flip, extend):
            # The end position of an entry is the start of the next message.
            assert len(damaged[name]) <= 2
    is_reported = any(
        record.levelno >= logging.WARNING and damaged_stream in record.getMessage()
        for record in caplog.records
    )
    lost = sum(map(len, damaged.values()))
    missing = sum(
        len(messages) - log_of(store, name).end + 1 for name, messages in built.messages.items()
    )
    # Changed bytes below the checkpoint are detected when the message is read.
    assert is_reported or damage in (flip, zero) or (lost == 0 and missing <= 0)
    store.close()

    # No bytes are deleted: they are still in the file or in a renamed one. New messages follow, and
    # a journal may have restored damaged bytes.
    after = contents_below(root)
    for contents in before:
        kept = contents.rstrip(b"\0")
        assert any(_holds(found, kept, original) for found in after)

    # Another start changes nothing.
    store = Store(root)
    for name, messages in built.messages.items():
        log = log_of(store, name)
        read = dict(read_range(log, 0, min(log.end - 1, len(messages))))
        assert [number for number, payload in read.items() if payload is None] == damaged[name]
    store.close()
    shutil.rmtree(root)


def _holds(found: bytes, kept: bytes, original: bytes) -> bool:
    if found.startswith(kept):
        return True
    return len(found) >= len(kept) and all(
        byte == found[place] or found[place : place + 1] == original[place : place + 1]
        for place, byte in enumerate(kept)
    )
