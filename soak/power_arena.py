"""Power cuts of a broker on ext4, which may lose unflushed writes."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from penstock.errors import StreamManagerException
from penstock.wire.operations import Operation
from soak.block_device import Ext4Disk
from soak.checks import Defect, Expected, Finding, Found, compare
from soak.churn import Churn
from soak.ledger import Ledger, StreamLedger
from soak.load import Load, PipelinedProducer
from soak.plan import PowerRound, SoakLimits, plan_power_rounds
from soak.processes import BrokerProgram
from soak.reading import read_stream
from soak.report import Tally
from tests.raw_connection import RawConnection

DISK_BYTES = 96 * 1024 * 1024
_MAX_ANSWERS = 60_000

_SYNC_INTERVAL_MS = 200
# Messages that were acknowledged this long before a cut must survive it without flush on write. Far
# above the sync interval, because a sync may be slow on a busy machine.
_SYNCED_SECONDS = 10.0

_STREAMS: dict[str, dict[str, object]] = {
    "flushed": {"flushOnWrite": True},
    "flushed-small": {"flushOnWrite": True, "streamSegmentSize": 8192},
    "synced": {"streamSegmentSize": 65_536},
}


def forget_lost_answers(ledger: StreamLedger, expected: Expected, found: Found) -> int:
    """Removes acknowledgements that the cut has lost legitimately; returns how many."""
    for damaged in found.damaged:
        ledger.damaged |= set(damaged)
    return ledger.forget(expected.volatile - found.messages.keys())


class PowerArena:
    def __init__(self, scratch: Path, seed: int, tally: Tally, limits: SoakLimits) -> None:
        self._seed = seed
        self._tally = tally
        self._limits = limits
        self._disk = Ext4Disk(scratch / "power", DISK_BYTES)
        self.broker = BrokerProgram(
            self._disk.directory / "root",
            scratch / "power-broker.log",
            PENSTOCK_SYNC_INTERVAL_MS=str(_SYNC_INTERVAL_MS),
        )
        self._ledger = Ledger()
        self._load = Load()
        # Definition changes are synced before the response.
        self._churn = Churn(self.broker, tally, "power-churn", seed, 0.1, appends=False)
        self._streams: dict[str, StreamLedger] = {}
        self._generation = 0
        # Times, and numbers of acknowledgements of the stream that is synced in the background.
        self._samples: list[tuple[float, int]] = []

    def run(self) -> None:
        self._disk.create()
        try:
            self.broker.start()
            self._make_generation()
            for kind, rate in (("flushed", 150), ("flushed-small", 100), ("synced", 150)):
                producer = PipelinedProducer(self.broker, [self._streams[kind].add_source()], rate)
                producer.name = kind
                self._load.add(producer)
            rounds = plan_power_rounds(self._seed, self._limits.max_load_seconds)
            self._load.add_other(self._churn)
            for planned in self._limits.bound(rounds):
                self._run_round(planned)
            self._tally.count("appends answered", self._ledger.answers)
            self._tally.count(
                "disk writes that were not flushed at a cut", self._disk.unflushed_writes
            )
            self._tally.count("sectors that power cuts lost", self._disk.lost_sectors)
        finally:
            self._load.end()
            if self.broker.is_running:
                self.broker.kill()
            self._disk.unmount()

    def _make_generation(self) -> None:
        """Deletes the checked streams and creates new ones. The load is paused."""
        self._generation += 1
        with self.broker.connect() as connection:
            for stream in self._streams.values():
                connection.call(Operation.DeleteMessageStream, name=stream.name)
                self._tally.count("definition changes")
                self._ledger.remove(stream.name)
            for kind, fields in _STREAMS.items():
                name = f"power-{kind}-{self._generation}"
                definition = {"name": name, "strategyOnFull": 0, "maxSize": 1 << 26, **fields}
                connection.call(Operation.CreateMessageStream, definition=definition)
                self._tally.count("definition changes")
                self._streams[kind] = self._ledger.add(name)
        for producer in self._load.producers:
            producer.sources = [self._streams[producer.name].add_source()]
        self._samples = []

    def _run_round(self, planned: PowerRound) -> None:
        self._load.resume()
        synced = self._streams["synced"]
        end = time.monotonic() + planned.load_seconds
        while time.monotonic() < end:
            self._samples.append((time.monotonic(), synced.answers))
            time.sleep(0.05)
        # Read before the cut: these acknowledged messages must survive it.
        durable = {kind: stream.answers for kind, stream in self._streams.items()}
        durable["synced"] = self._synced_answers(time.monotonic() - _SYNCED_SECONDS)
        confirmed = self._churn.confirmed_streams()
        self._disk.cut(planned.seed)
        self.broker.kill()
        self._load.pause()
        self._disk.unmount()
        self._disk.mount()
        self.broker.start()
        self._churn.restore(confirmed)
        with self.broker.connect() as connection:
            self._churn.check(connection)
            for kind, stream in self._streams.items():
                self._check(connection, stream, durable[kind])
        self._tally.count("power cuts")
        # All current messages are durable.
        self._samples = [(0.0, synced.answers)]
        if sum(stream.answers for stream in self._streams.values()) > _MAX_ANSWERS:
            self._make_generation()

    def _synced_answers(self, before: float) -> int:
        return max((answers for at, answers in self._samples if at <= before), default=0)

    def _check(self, connection: RawConnection, stream: StreamLedger, durable: int) -> None:
        volatile = frozenset(stream.numbers_since(durable))
        expected = replace(stream.expected(), volatile=volatile, is_after_power_cut=True)
        try:
            found = read_stream(connection, stream.name)
        except StreamManagerException as error:
            detail = f"the stream cannot be read after a power cut: {error}"
            self._tally.add_findings([Finding(Defect.LOST, stream.name, detail)])
            return
        self._tally.add_result(compare(stream.name, expected, found))
        taken = forget_lost_answers(stream, expected, found)
        self._tally.count("unsynced appends that power cuts took (allowed)", taken)
