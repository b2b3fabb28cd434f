"""A broker under load: kills, full disks, damaged files, hostile clients, definition churn."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from random import Random

from penstock.errors import MessageStoreReadErrorException, StreamManagerException
from penstock.wire.operations import Operation
from soak.checks import Defect, Finding, compare
from soak.churn import Churn
from soak.damage import (
    SEGMENT_DAMAGE,
    find_stream_directory,
    list_segments,
    plan_catalog_damage,
    plan_damage,
)
from soak.hostile import HOSTILE_STREAM, HostileClients
from soak.ledger import Ledger, SourceLedger, StreamLedger
from soak.load import (
    SDK_PYTHON,
    ClientProducer,
    Load,
    PipelinedProducer,
    Producer,
    SdkProducer,
)
from soak.messages import make_payload
from soak.plan import BrokerEvent, BrokerRound, SoakLimits, plan_broker_rounds
from soak.processes import BrokerProgram, SoakError
from soak.reader import Reader
from soak.reading import read_stream
from soak.report import Tally
from soak.small_disk import SmallDisk
from soak.verification import verify_store
from tests.raw_connection import RawConnection

DISK_BYTES = 256 * 1024 * 1024
# With less free space, streams are checked, deleted and replaced.
_MIN_FREE_BYTES = 128 * 1024 * 1024
_MAX_ANSWERS = 200_000

_OVERWRITING_BYTES = 256 * 1024
_STREAMS: dict[str, dict[str, object]] = {
    "plain": {},
    "flushed": {"flushOnWrite": True},
    # Segments roll often, so that kills hit the change of segments.
    "small-segments": {"streamSegmentSize": 16_384},
    "sdk": {"streamSegmentSize": 1 << 20},
    # Evicts its oldest messages.
    "overwriting": {
        "strategyOnFull": 1,
        "maxSize": _OVERWRITING_BYTES,
        "streamSegmentSize": 16_384,
    },
}
_PROMPT_SECONDS = 10.0

# Free bytes of a filled disk: none, a few, and about the minimum that appends leave.
_FREE_BYTES = (0, 0, 4096, 300_000, 8 * 1024 * 1024 + 50_000)
_BALLAST_MESSAGES = 16
# Shares of the max size: above the first the next appends evict messages; a stream below the second
# has evicted too many.
_NEARLY_FULL, _MIN_FILL = 0.9, 0.6


class BrokerArena:
    def __init__(
        self, scratch: Path, seed: int, tally: Tally, limits: SoakLimits, disk: SmallDisk | None
    ) -> None:
        self._seed = seed
        self._tally = tally
        self._limits = limits
        self._disk = disk
        home = disk.directory if disk is not None else scratch
        # The max wait for hostile clients that do not read their responses.
        self.broker = BrokerProgram(
            home / "root", scratch / "broker.log", PENSTOCK_STOP_TIMEOUT_MS="500"
        )
        self._ledger = Ledger()
        self._load = Load()
        self._churn = Churn(self.broker, tally, "churn", seed, 0.02)
        self._reader = Reader(self.broker, tally, seed)
        self._producers: dict[str, list[Producer]] = {}
        self._generation = 0
        self._streams: dict[str, StreamLedger] = {}
        # By stream, the sequence number at which the next check starts.
        self._checked: dict[str, int] = {}
        self._victims: list[StreamLedger] = []
        self._victim_sources: list[SourceLedger] = []
        # By stream, the sequence numbers that read as damaged at the last check.
        self._unreadable: dict[str, Sequence[range]] = {}
        # The stream to delete when the disk is full.
        self._ballast = ""
        self._ballasts = 0
        self._log_position = 0

    def run(self) -> None:
        self.broker.start()
        try:
            self._begin()
            rounds = plan_broker_rounds(
                self._seed,
                has_small_disk=self._disk is not None,
                max_load_seconds=self._limits.max_load_seconds,
            )
            for planned in self._limits.bound(rounds):
                self._run_round(planned)
            self._finish()
        finally:
            self._load.end()
            if self.broker.is_running:
                self.broker.kill()

    def _begin(self) -> None:
        with self.broker.connect() as connection:
            self._create(connection, HOSTILE_STREAM, {"strategyOnFull": 1, "maxSize": 1 << 20})
            self._make_generation(connection)
            self._make_victim(connection, Random(self._seed))
        for name, producer in (
            ("plain", PipelinedProducer(self.broker, [], 400)),
            ("plain", ClientProducer(self.broker, [], 150, self._seed)),
            ("flushed", PipelinedProducer(self.broker, [], 200)),
            ("small-segments", PipelinedProducer(self.broker, [], 200)),
            ("overwriting", ClientProducer(self.broker, [], 150, self._seed + 1)),
        ):
            self._add_producer(name, producer)
        if SDK_PYTHON.exists():
            self._add_producer("sdk", SdkProducer(self.broker, [], 100))
        else:
            self._tally.add_note("no load by the AWS SDK: it is not installed in .sdks")
        self._load.add_other(self._churn)
        self._load.add_other(self._reader)

    def _add_producer(self, stream: str, producer: Producer) -> None:
        producer.sources = [self._streams[stream].add_source()]
        self._producers.setdefault(stream, []).append(producer)
        self._load.add(producer)

    # Streams

    def _create(self, connection: RawConnection, name: str, fields: dict[str, object]) -> None:
        definition = {"name": name, "strategyOnFull": 0, "maxSize": 1 << 30, **fields}
        connection.call(Operation.CreateMessageStream, definition=definition)
        self._tally.count("definition changes")

    def _make_generation(self, connection: RawConnection) -> None:
        """Creates new streams, also after the deletion of old ones. The load is paused."""
        self._generation += 1
        for kind, fields in _STREAMS.items():
            name = f"{kind}-{self._generation}"
            self._create(connection, name, fields)
            self._streams[kind] = self._ledger.add(name, drops=kind == "overwriting")
            self._checked[kind] = 0
            for producer in self._producers.get(kind, ()):
                producer.sources = [self._streams[kind].add_source()]
        self._reader.streams = {each.name: each.source_prefix for each in self._streams.values()}

    def _make_victim(self, connection: RawConnection, random: Random) -> None:
        """Creates the next stream whose files are damaged."""
        name = f"victim-{len(self._victims) + 1}"
        fields: dict[str, object] = {
            "streamSegmentSize": random.choice((4096, 16_384, 65_536)),
            "flushOnWrite": random.random() < 0.5,
        }
        self._create(connection, name, fields)
        victim = self._ledger.add(name)
        self._victims.append(victim)
        self._victim_sources.append(victim.add_source())

    def _append_to_victim(self, connection: RawConnection, place: int, count: int) -> None:
        self._append(connection, self._victim_sources[place], count)

    def _append(self, connection: RawConnection, source: SourceLedger, count: int) -> None:
        first = source.send(count)
        payloads = [make_payload(source.name, first + each) for each in range(count)]
        number = connection.append_many(source.stream, payloads)
        for each in range(count):
            source.answer(first + each, number + each)

    # Rounds

    def _run_round(self, planned: BrokerRound) -> None:
        random = Random(planned.seed)
        self._tally.count("rounds of the broker arena")
        with self.broker.connect() as connection:
            for _ in range(random.randint(1, 4)):
                self._append_to_victim(connection, -1, random.randint(1, 200))
            if not self._ballast:
                self._make_ballast(connection)
        hostile = HostileClients(
            self.broker.port,
            self.broker.http_port,
            self.broker.token,
            self._streams["small-segments"].name,
        )
        self._load.resume()
        began = time.monotonic()
        for kind in planned.hostile:
            hostile.attack(kind, random)
        for name, count in hostile.by_kind.items():
            self._tally.count(f"hostile: {name}", count)
        self._tally.count("hostile connections", hostile.connections)
        while time.monotonic() - began < planned.load_seconds:
            time.sleep(0.02)
        self._check_prompt()
        self._tally.record_max(
            "largest memory of the broker, MB", self.broker.resident_bytes() // 1_000_000
        )
        self._perform(planned.event, random)
        hostile.close()
        self._load.pause()
        if not self.broker.is_running:
            self.broker.start()
        self._check_all(tail_only=True)
        self._check_log()
        self._renew_if_large()

    def _check_prompt(self) -> None:
        """Checks that a well-behaved client is served during hostile load."""
        began = time.monotonic()
        try:
            with self.broker.connect(_PROMPT_SECONDS) as connection:
                connection.call(Operation.ListStreams)
            url = f"http://127.0.0.1:{self.broker.http_port}/healthz"
            urllib.request.urlopen(url, timeout=_PROMPT_SECONDS).close()
        except (OSError, StreamManagerException) as error:
            self._tally.add_findings(
                [Finding(Defect.WRONG, "broker", f"a client is not served: {error}")]
            )
        millis = int((time.monotonic() - began) * 1000)
        self._tally.record_max("longest answer to a new client, ms", millis)

    def _perform(self, event: BrokerEvent, random: Random) -> None:
        match event:
            case BrokerEvent.KILL:
                self.broker.kill()
                self._tally.count(event)
            case BrokerEvent.TERMINATE:
                self._terminate()
                self._tally.count(event)
            case BrokerEvent.DAMAGE:
                self._load.pause()
                self._terminate()
                self._damage(random)
            case BrokerEvent.CATALOG_DAMAGE:
                self._load.pause()
                self._terminate()
                self._damage_catalog(random)
            case BrokerEvent.FULL_DISK | BrokerEvent.FULL_DISK_KILL:
                self._fill_disk(random, is_killed=event is BrokerEvent.FULL_DISK_KILL)
            case BrokerEvent.NOTHING:
                pass

    def _terminate(self) -> None:
        code = self.broker.terminate()
        if code:
            self._tally.add_findings(
                [Finding(Defect.WRONG, "broker", f"exit code {code} after SIGTERM")]
            )

    def _damage(self, random: Random) -> None:
        """Damages a stream after a clean stop, when checkpoints cover all its messages."""
        victim = self._victims[-1]
        directory = find_stream_directory(self.broker.root, victim.name)
        segments = list_segments(directory)
        places = random.sample(segments, k=min(len(segments), random.randint(1, 3)))
        # Recovery reads the active segment, so it is damaged more often.
        if segments[-1] not in places and random.random() < 0.5:
            places[0] = segments[-1]
        for segment in places:
            damage = plan_damage(segment, random.choice(SEGMENT_DAMAGE), random)
            damage.apply()
            victim.damaged |= damage.hits
            self._tally.count("damaged places")
            self._tally.count(f"damage: {damage.kind}")
        self.broker.start()
        with self.broker.connect() as connection:
            # New messages get new sequence numbers.
            self._append_to_victim(connection, -1, 50)
            self._check(connection, victim)
            self._make_victim(connection, random)

    def _damage_catalog(self, random: Random) -> None:
        """Damages the catalog. The round checks that all messages and definitions remain."""
        damage = plan_catalog_damage(self.broker.root, random)
        damage.apply()
        self._tally.count("damaged places")
        self._tally.count(f"damage: {damage.kind}")

    def _fill_disk(self, random: Random, *, is_killed: bool) -> None:
        assert self._disk is not None
        self._disk.fill(random.choice(_FREE_BYTES))
        self._tally.count("full-disk episodes")
        time.sleep(random.uniform(0.5, 2.0))
        self._check_full_disk_operations()
        if is_killed:
            self.broker.kill()
            self._tally.count("kill -9 on a full disk")
            self._load.pause()
            try:
                self.broker.start()
            except SoakError as error:
                detail = f"does not start on a full disk: {error}"
                self._tally.add_findings([Finding(Defect.WRONG, "broker", detail)])
            else:
                # Stored messages can be read on a full disk.
                self._check_all(tail_only=True)
        self._load.pause()
        self._disk.free()
        if not self.broker.is_running:
            self.broker.start()
        self._check_appends_work()

    def _check_full_disk_operations(self) -> None:
        """Checks that a full disk allows deletion, and appends to an overwriting stream."""
        assert self._disk is not None
        self._disk.fill(0)
        with self.broker.connect() as connection:
            overwriting = self._streams["overwriting"]
            is_full = _stored_bytes(connection, overwriting) > _NEARLY_FULL * _OVERWRITING_BYTES
            source = overwriting.add_source()
            try:
                if is_full:
                    self._append(connection, source, 20)
                    self._tally.count("appends to an overwriting stream on a full disk", 20)
                connection.call(Operation.DeleteMessageStream, name=self._ballast)
            except StreamManagerException as error:
                detail = f"fails on a full disk: {error}"
                self._tally.add_findings([Finding(Defect.WRONG, "broker", detail)])
                return
        self._tally.count("streams deleted on a full disk")
        self._ballast = ""

    def _make_ballast(self, connection: RawConnection) -> None:
        """Creates a stream to delete when the disk is full."""
        self._ballasts += 1
        self._ballast = f"ballast-{self._ballasts}"
        self._create(connection, self._ballast, {})
        for _ in range(_BALLAST_MESSAGES):
            connection.append_many(self._ballast, [bytes(64 * 1024)])

    def _check_appends_work(self) -> None:
        """Checks that appends succeed without a restart after space is freed."""
        deadline = time.monotonic() + _PROMPT_SECONDS
        with self.broker.connect() as connection:
            while True:
                try:
                    self._append_to_victim(connection, -1, 1)
                    return
                except StreamManagerException as error:
                    if time.monotonic() > deadline:
                        detail = f"appends fail although space was freed: {error}"
                        self._tally.add_findings([Finding(Defect.WRONG, "broker", detail)])
                        return
                    time.sleep(0.1)

    # Checks

    def _check_all(self, *, tail_only: bool) -> None:
        with self.broker.connect() as connection:
            self._check_listed(connection)
            for kind, stream in self._streams.items():
                first = self._checked[kind] if tail_only else 0
                self._checked[kind] = self._check(connection, stream, first)
            self._check_retention(connection)
            for victim in self._victims[-1:] if tail_only else self._victims:
                self._check(connection, victim)
            self._churn.check(connection)

    def _check_retention(self, connection: RawConnection) -> None:
        """Checks that an overwriting stream evicts no more messages than needed."""
        stream = self._streams["overwriting"]
        stored = _stored_bytes(connection, stream)
        oldest = read_stream(connection, stream.name, first=self._checked["overwriting"]).oldest
        if oldest > 0 and stored < _MIN_FILL * _OVERWRITING_BYTES:
            detail = f"only {stored} of {_OVERWRITING_BYTES} bytes are left, from {oldest}"
            self._tally.add_findings([Finding(Defect.LOST, stream.name, detail)])

    def _check_listed(self, connection: RawConnection) -> None:
        names = set(connection.call(Operation.ListStreams)["streams"])
        lost = [stream.name for stream in self._ledger.streams() if stream.name not in names]
        self._tally.add_findings(
            Finding(Defect.LOST, name, "the stream is not listed") for name in lost
        )

    def _check(self, connection: RawConnection, stream: StreamLedger, first: int = 0) -> int:
        """Checks a stream; returns the sequence number at which the next check starts."""
        expected = stream.expected(first)
        try:
            found = read_stream(connection, stream.name, first)
        except (MessageStoreReadErrorException, StreamManagerException) as error:
            detail = f"the stream cannot be read: {error}"
            self._tally.add_findings([Finding(Defect.LOST, stream.name, detail)])
            return first
        self._tally.add_result(compare(stream.name, expected, found))
        self._unreadable[stream.name] = found.damaged
        return found.end

    def _check_log(self) -> None:
        """Checks that the new part of the log has no traceback."""
        with self.broker.log.open() as log:
            log.seek(self._log_position)
            lines = log.read()
            self._log_position = log.tell()
        if "Traceback" in lines:
            place = lines.index("Traceback")
            detail = lines[place : place + 2000]
            self._tally.add_findings([Finding(Defect.WRONG, "broker.log", detail)])

    def _renew_if_large(self) -> None:
        is_large = sum(stream.answers for stream in self._streams.values()) > _MAX_ANSWERS
        if self._disk is not None:
            is_large |= self._disk.free_bytes() < _MIN_FREE_BYTES
        if not is_large:
            return
        with self.broker.connect() as connection:
            for stream in self._streams.values():
                self._check(connection, stream)
                connection.call(Operation.DeleteMessageStream, name=stream.name)
                self._tally.count("definition changes")
                self._ledger.remove(stream.name)
            self._make_generation(connection)

    def _finish(self) -> None:
        """Restarts the broker cleanly, checks all messages, and runs `penstock verify`."""
        self._load.pause()
        self._terminate()
        self.broker.start()
        self._check_all(tail_only=False)
        self._check_log()
        self._terminate()
        verify_store(self.broker.root, self._unreadable, self._tally)
        self._tally.count("appends answered", self._ledger.answers + self._churn.answers)
        self._tally.count("appends refused", self._load.refusals)
        for kind, answers in self._load.answers_by_kind().items():
            self._tally.count(f"of these by {kind}", answers)
        with contextlib.suppress(OSError):
            self._tally.count(
                "bytes of the broker's log, KB", self.broker.log.stat().st_size // 1000
            )


def _stored_bytes(connection: RawConnection, stream: StreamLedger) -> int:
    status = connection.call(Operation.DescribeMessageStream, name=stream.name)
    total: int = status["messageStreamInfo"]["storageStatus"]["totalBytes"]
    return total
