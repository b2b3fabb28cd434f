"""Power cuts without mounts: a store on a simulated disk that loses unsynced data."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from random import Random

from penstock.model import MessageStreamDefinition, StrategyOnFull
from penstock.store.log import FileLog
from penstock.store.segment import DamagedError
from penstock.store.store import Store
from soak.checks import Found, compare
from soak.ledger import Ledger, SourceLedger, StreamLedger
from soak.messages import MessageId, identify, make_payload
from soak.plan import SoakLimits, plan_power_rounds
from soak.power_arena import forget_lost_answers
from soak.report import Tally
from tests.faulty_disk import FaultyDisk

_MAX_ANSWERS = 3000
_READ_BYTES = 1 << 20


class SimulatedPowerArena:
    """Runs a store in this process: appends, flushes, syncs and power cuts."""

    def __init__(self, scratch: Path, seed: int, tally: Tally, limits: SoakLimits) -> None:
        self._root = scratch / "simulated"
        self._seed = seed
        self._tally = tally
        self._limits = limits
        self._ledger = Ledger()
        self._begin()

    def _begin(self) -> None:
        """Creates a store. It must stay small, because the disk keeps every file in memory."""
        shutil.rmtree(self._root, ignore_errors=True)
        self._disk = FaultyDisk()
        self._store = Store(self._root, self._disk)
        self._sources: list[SourceLedger] = []
        self._streams: list[StreamLedger] = []
        # By stream, the number of acknowledged messages that must survive a cut.
        self._durable: list[int] = []
        for name, flushes in (("flushed", True), ("synced", False)):
            self._store.create(
                MessageStreamDefinition(
                    name=name,
                    strategy_on_full=StrategyOnFull.RejectNewData,
                    stream_segment_size=8192,
                    flush_on_write=flushes,
                )
            )
            stream = self._ledger.add(name)
            self._streams.append(stream)
            self._sources.append(stream.add_source())
            self._durable.append(0)

    def run(self) -> None:
        try:
            rounds = plan_power_rounds(self._seed, self._limits.max_load_seconds)
            for planned in self._limits.bound(rounds):
                self._run_round(Random(planned.seed), int(planned.load_seconds * 30))
                if sum(stream.answers for stream in self._streams) > _MAX_ANSWERS:
                    self._end()
                    self._begin()
        finally:
            self._end()
            self._tally.count("appends answered", self._ledger.answers)

    def _end(self) -> None:
        self._store.close()
        for stream in self._streams:
            self._ledger.remove(stream.name)

    def _log(self, place: int) -> FileLog:
        log = self._store.streams[self._streams[place].name].log
        assert isinstance(log, FileLog)
        return log

    def _run_round(self, random: Random, steps: int) -> None:
        for _ in range(steps):
            place = random.randrange(len(self._streams))
            self._append(place, random.choice((1, 1, 3, 10)))
            if random.random() < 0.1:
                self._store.sync()
                self._durable = [stream.answers for stream in self._streams]
            if random.random() < 0.1:
                self._store.work()
        self._cut(random)

    def _append(self, place: int, count: int) -> None:
        source, log = self._sources[place], self._log(place)
        first = source.send(count)
        payloads = [make_payload(source.name, first + each) for each in range(count)]
        number = log.append(payloads, time.time_ns() // 1_000_000)
        if self._store.streams[source.stream].definition.flush_on_write:
            log.flush()
        for each in range(count):
            source.answer(first + each, number + each)
        if self._store.streams[source.stream].definition.flush_on_write:
            self._durable[place] = self._streams[place].answers

    def _cut(self, random: Random) -> None:
        self._store.catalog.close()
        # A power cut releases the lock.
        os.close(self._store._lock)
        self._disk.power_cut(random)
        self._store = Store(self._root, self._disk)
        self._tally.count("power cuts")
        for place, stream in enumerate(self._streams):
            expected = replace(
                stream.expected(),
                volatile=frozenset(stream.numbers_since(self._durable[place])),
                is_after_power_cut=True,
            )
            found = self._read(place)
            self._tally.add_result(compare(stream.name, expected, found))
            taken = forget_lost_answers(stream, expected, found)
            self._tally.count("unsynced appends that power cuts took (allowed)", taken)
            self._durable[place] = stream.answers

    def _read(self, place: int) -> Found:
        log = self._log(place)
        messages: dict[int, MessageId | None] = {}
        damaged: list[range] = []
        number = log.oldest
        while number < log.end:
            try:
                run = log.read(number, log.end, _READ_BYTES)
            except DamagedError as error:
                damaged.append(range(number, error.next_number))
                number = error.next_number
                continue
            for payload in run.payloads:
                messages[number] = identify(payload)
                number += 1
        return Found(0, log.oldest, log.end, messages, damaged)
