"""The store against a plain list of messages, through crashes, faults and power cuts.

The list has all acknowledged messages. After a kill all of them must be readable. After a power
cut, all synced messages must be readable, and other messages are intact or reported as damaged.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.model import MessageStreamDefinition, StrategyOnFull
from penstock.store.log import FileLog, MessageTooLargeError, StreamFullError
from penstock.store.segment import DamagedError, LostError
from penstock.store.store import Store
from penstock.store.stored_stream import StoredStream
from tests.faulty_disk import FaultyDisk
from tests.support import MEMORY

NAME = "a stream, with .."
TIME_TO_LIVE = 60_000

payloads = st.lists(st.binary(min_size=1, max_size=700), min_size=1, max_size=6)


class StoreAgainstAList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="penstock-model-", dir=MEMORY))
        self.disk = FaultyDisk()
        # Fewer than the segments need.
        self.disk.pool.capacity = 2
        self.store = Store(self.root, self.disk)
        self.now = 1_700_000_000_000
        self.messages: dict[int, tuple[int, bytes]] = {}
        self.end = 0
        self.oldest = 0
        self.durable_end = 0
        self.torn: set[int] = set()
        # Refused messages whose truncation failed as well. They may appear after a crash, unless
        # an append or a clean stop comes first.
        self.leftovers: dict[int, tuple[int, bytes]] = {}

    @initialize(
        overwrites=st.booleans(),
        expires=st.booleans(),
        flushes=st.booleans(),
        max_size=st.sampled_from([4096, 20_000]),
    )
    def create(self, overwrites: bool, expires: bool, flushes: bool, max_size: int) -> None:
        self.definition = MessageStreamDefinition(
            name=NAME,
            max_size=max_size,
            stream_segment_size=1024,
            time_to_live_millis=TIME_TO_LIVE if expires else None,
            strategy_on_full=StrategyOnFull(int(overwrites)),
            flush_on_write=flushes,
        )
        self.store.create(self.definition)

    @property
    def stream(self) -> StoredStream:
        return self.store.streams[NAME]

    @property
    def log(self) -> FileLog:
        assert isinstance(self.stream.log, FileLog)
        return self.stream.log

    # Operations of a broker

    @rule(batch=payloads)
    def append(self, batch: list[bytes]) -> None:
        before = (self.log.oldest, self.log.end, self.log.total_bytes)
        size = sum(map(len, batch))
        try:
            first = self.log.append(batch, self.now)
        except StreamFullError:
            assert self.definition.strategy_on_full is StrategyOnFull.RejectNewData
            assert self.log.total_bytes + size > self.definition.max_size
        except MessageTooLargeError:
            assert size > self.definition.max_size
        else:
            assert first == self.end
            self._record_append(batch)
            return
        assert (self.log.oldest, self.log.end, self.log.total_bytes) == before

    @rule(size=st.integers(100, 1000), count=st.integers(1, 12))
    def append_one_by_one(self, size: int, count: int) -> None:
        """Appends enough messages to fill segments and streams."""
        for number in range(count):
            self.append([bytes([number + 1]) * size])

    @rule(batch=payloads)
    def append_and_flush(self, batch: list[bytes]) -> None:
        self.append(batch)
        self.flush()

    @rule(batch=payloads, room=st.integers(0, 2000), stays_torn=st.booleans())
    def append_to_a_full_disk(self, batch: list[bytes], room: int, stays_torn: bool) -> None:
        self.disk.fill(room)
        if stays_torn:
            self.disk.fails = lambda action, _path: action == "truncate"
        end = self.log.end
        try:
            first = self.log.append(batch, self.now)
        except OSError:
            assert self.log.end == end
            if stays_torn and not self.leftovers:
                self.leftovers = {n: (self.now, payload) for n, payload in enumerate(batch, end)}
        except (StreamFullError, MessageTooLargeError):
            assert self.log.end == end
        else:
            assert first == self.end
            self._record_append(batch)
        self.disk.mend()

    def _record_append(self, batch: list[bytes]) -> None:
        self.messages |= {n: (self.now, payload) for n, payload in enumerate(batch, self.end)}
        self.end += len(batch)
        self.leftovers = {}

    @rule()
    def sync(self) -> None:
        self.log.sync()
        self.durable_end = self.end

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.durable_end = self.end

    @rule()
    def flush_on_a_failing_disk(self) -> None:
        self.disk.fails = lambda action, _path: action in ("sync", "create")
        with contextlib.suppress(OSError):
            self.log.flush()
            self.durable_end = self.end
        self.disk.mend()

    @rule()
    def sync_in_the_background(self) -> None:
        self.store.sync()
        self.durable_end = self.end

    @rule()
    def checkpoint(self) -> None:
        self.log.checkpoint()
        self.durable_end = self.end

    @rule()
    def sync_on_a_failing_disk(self) -> None:
        self.disk.fails = lambda action, _path: action == "sync"
        with contextlib.suppress(OSError):
            self.log.sync()
        self.disk.mend()

    @rule()
    def work(self) -> None:
        self.store.work()

    @rule(action=st.sampled_from(["sync", "remove", "sync directory"]))
    def work_on_a_failing_disk(self, action: str) -> None:
        self.disk.fails = lambda tried, _path: tried == action
        self.store.work()
        self.disk.mend()

    @rule(millis=st.integers(1, 50_000))
    def time_passes(self, millis: int) -> None:
        self.now += millis
        self.log.trim(self.now)

    @rule(
        max_size=st.sampled_from([4096, 20_000, 30_000]),
        segment=st.sampled_from([1024, 2048]),
        flushes=st.booleans(),
    )
    def update(self, max_size: int, segment: int, flushes: bool) -> None:
        if max_size < self.log.total_bytes:
            return
        self.definition = MessageStreamDefinition(
            name=NAME,
            max_size=max_size,
            stream_segment_size=segment,
            time_to_live_millis=self.definition.time_to_live_millis,
            strategy_on_full=self.definition.strategy_on_full,
            flush_on_write=flushes,
        )
        self.store.update(self.stream, self.definition)

    @precondition(lambda self: self.end > self.oldest)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        if self.log.oldest == self.log.end:
            return
        start = data.draw(st.integers(self.log.oldest, self.log.end - 1))
        stop = data.draw(st.integers(start + 1, self.log.end))
        max_bytes = data.draw(st.sampled_from([1, 500, 1 << 20]))
        try:
            run = self.log.read(start, stop, max_bytes)
        except DamagedError:
            assert start in self.torn
            return
        assert 1 <= len(run.payloads) <= stop - start
        size = sum(map(len, run.payloads))
        assert len(run.payloads) == 1 or size <= max_bytes
        for number, (time, payload) in enumerate(
            zip(run.ingest_times, run.payloads, strict=True), start
        ):
            assert self.messages[number] == (time, payload)

    # Stops and crashes

    def _abandon_store(self) -> None:
        """Leaves the store like a killed process."""
        self.disk.kill()
        self.store.catalog.close()
        os.close(self.store._lock)

    def _reopen(self) -> None:
        self.store = Store(self.root, self.disk)
        assert not self.store.unreadable
        assert self.log.limits.max_size == self.definition.max_size
        # A pending removal may be lost in the crash; a finished one is not.
        self.oldest = self.log.oldest
        while self.leftovers and self.end < self.log.end:
            self.messages[self.end] = self.leftovers[self.end]
            self.end += 1
        self.leftovers = {}

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.leftovers = {}
        self._reopen()
        assert self.log.end == self.end
        self.durable_end = self.end

    @rule()
    def kill(self) -> None:
        self._abandon_store()
        self._reopen()
        assert self.log.end == self.end

    @rule(random=st.randoms(use_true_random=False))
    def cut_power(self, random: Random) -> None:
        self._abandon_store()
        self.disk.power_cut(random)
        self._reopen()
        assert self.log.end >= self.durable_end
        if self.durable_end < self.log.end <= self.end:
            # Interrupted appends are removed, not left as damage. Only the file name of a later
            # segment without messages may keep their numbers.
            with contextlib.suppress(LostError):
                self.log.read(self.log.end - 1, self.log.end, 1)
        self.torn |= set(range(self.durable_end, self.end))
        for number in range(self.log.end, self.end):
            del self.messages[number]
        for number in range(self.end, self.log.end):
            self.torn.add(number)
        self.end = self.log.end
        self.durable_end = self.end

    @rule()
    def delete_and_create_again(self) -> None:
        directory = self.root / "streams" / self.stream.id
        self.store.delete(NAME)
        self.store.work()
        assert not directory.exists()
        self.store.create(self.definition)
        self.messages, self.torn, self.leftovers = {}, set(), {}
        self.end = self.oldest = self.durable_end = 0

    # Invariants

    @invariant()
    def numbers_and_sizes_agree(self) -> None:
        if NAME not in self.store.streams:
            return
        log = self.log
        assert log.end == self.end
        assert self.oldest <= log.oldest <= log.end
        self.oldest = log.oldest
        kept = [number for number in range(log.oldest, log.end) if number in self.messages]
        if not self.torn:
            assert log.total_bytes == sum(len(self.messages[number][1]) for number in kept)

    @invariant()
    def all_durable_messages_can_be_read(self) -> None:
        if NAME not in self.store.streams:
            return
        number = self.log.oldest
        while number < self.log.end:
            try:
                run = self.log.read(number, self.log.end, 1 << 20)
            except DamagedError as error:
                assert number in self.torn
                number = error.next_number
                continue
            for time, payload in zip(run.ingest_times, run.payloads, strict=True):
                assert self.messages[number] == (time, payload)
                number += 1

    def teardown(self) -> None:
        self._abandon_store()
        shutil.rmtree(self.root)


TestStoreAgainstAList = StoreAgainstAList.TestCase
TestStoreAgainstAList.settings = settings(
    max_examples=settings().max_examples * 6 // 10,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
