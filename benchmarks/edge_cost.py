"""Cost of exports on a small machine: `penstock up`, with the load of its demo and idle.

The peer is a loop of forty lines, `benchmarks.export_loop`, that reads the same streams from the
same broker and calls boto3's `put_records`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.clients import WrongAnswerError
from benchmarks.processes import measure_shares, memory_bytes
from benchmarks.report import Comparison, Target, Unit
from benchmarks.servers import Server, running
from benchmarks.timing import Figure, Scale
from penstock import StreamManagerClient
from penstock.demo.devices import DEVICES, STREAMS
from penstock.sandbox.client import SandboxClient

PIPELINE, BROKER = "Penstock pipeline", "Penstock broker"
LOOP, LOOP_BROKER = "boto3 in a loop", "the broker of the loop"

MAX_SHARES = {"processor": {PIPELINE: 6.0, BROKER: 4.0}, "idle": {PIPELINE: 1.0}}
MAX_PIPELINE_MEGABYTES = 450
MAX_FIRST_EXPORT_SECONDS = 6.0

MESSAGES_PER_SECOND = sum(len(each.measure(1.0)) / each.seconds_between for each in DEVICES)
_LOAD = f"{MESSAGES_PER_SECOND:.0f} messages a second, 7 exports"
# The demo does not catch up after delays.
_MIN_SHARE_OF_MESSAGES = 0.9
# After the first export. The first outage of the demo begins after 90 s.
_SETTLE_SECONDS = 10.0
# Without messages there is no sign that the pipeline has started.
_IDLE_SETTLE_SECONDS = 20.0
_TIMEOUT_SECONDS = 60.0

Groups = dict[str, list[psutil.Process]]


class Up(Server):
    """`penstock up` with a sandbox."""

    name = "penstock up"
    # The JSON line is printed when the broker is ready.
    ready_line = port_line = re.compile(r'"AWS_ENDPOINT_URL": "http://127\.0\.0\.1:(\d+)"')

    def __init__(self, root: Path, *flags: str) -> None:
        super().__init__(root.parent)
        self.root = root
        self._flags = flags

    def command(self) -> list[str]:
        own = ("--sandbox", "--json", "--port", "0", "--root", str(self.root))
        return [sys.executable, "-m", "penstock", "up", *own, *self._flags]

    @property
    def variables(self) -> dict[str, str]:
        return cache_variables(self.root.parent)

    @property
    def cloud(self) -> SandboxClient:
        return SandboxClient(f"http://127.0.0.1:{self.port}")

    def groups(self) -> Groups:
        """Returns the processes of the broker and, if it runs, of the pipeline."""
        groups: Groups = {}
        for program in self.process().children():
            words = program.cmdline()
            if "serve" in words:
                groups[BROKER] = [program]
            elif "pipeline" in words:
                groups[PIPELINE] = [program, *program.children(recursive=True)]
        return groups

    def wait_for_export(self) -> float:
        """Returns the arrival time of the first messages, in seconds since 1970."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            for call in self.cloud.calls("kinesis"):
                if call["stored"]:
                    return float(call["time"]) / 1000
            time.sleep(0.1)
        raise WrongAnswerError("nothing was exported")

    def count_arrived(self) -> int:
        totals = self.cloud.totals()
        return sum(each["stored"] for service, each in totals.items() if service != "s3")


class ExportLoop(Server):
    """The peer: exports from the broker of `up` to its sandbox."""

    name = LOOP
    ready_line = re.compile(r"^exporting")
    port_line = re.compile(r"(?!)")

    def __init__(self, up: Up) -> None:
        super().__init__(up.directory)
        self._up = up

    def command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.export_loop", str(self._up.root), *STREAMS]

    @property
    def variables(self) -> dict[str, str]:
        return {**self._up.cloud.variables, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}

    def start(self) -> float:
        with StreamManagerClient(root=self._up.root) as client:
            # The demo devices create the streams.
            while not set(STREAMS) <= set(client.list_streams()):
                time.sleep(0.01)
        return super().start()

    def groups(self) -> Groups:
        return {LOOP: [self.process()], LOOP_BROKER: self._up.groups()[BROKER]}


def cache_variables(directory: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(directory / "cache")}


def archive_classes(directory: Path) -> None:
    """Creates the class archive that the documentation recommends. Some Java versions cannot."""
    command = [sys.executable, "-m", "penstock", "pipeline", "--archive-classes"]
    environment = {**os.environ, **cache_variables(directory)}
    subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL)


class Cost(NamedTuple):
    # Percent of a core, by group.
    shares: dict[str, float]
    # Memory, by group.
    megabytes: dict[str, float]


def measure(directory: Path, scale: Scale) -> Iterator[Comparison]:
    first_exports: dict[str, list[float]] = {PIPELINE: [], LOOP: []}
    rounds = range(scale.latency_rounds)
    archive_classes(directory)
    for number in rounds:
        is_last = number == rounds[-1]
        began, up = time.time(), Up(directory / f"penstock-{number}", "--demo")
        with running(up):
            first_exports[PIPELINE].append(up.wait_for_export() - began)
            if is_last:
                busy = _measure(up, up, scale.edge_seconds, is_busy=True)
        began, peer = time.time(), Up(directory / f"loop-{number}", "--demo", "--no-pipeline")
        with running(peer), running(loop := ExportLoop(peer)):
            first_exports[LOOP].append(peer.wait_for_export() - began)
            if is_last:
                peer_busy = _measure(peer, loop, scale.edge_seconds, is_busy=True)
    # The same streams and exports without devices.
    up, peer = Up(up.root), Up(peer.root, "--no-pipeline")
    with running(up):
        idle = _measure(up, up, scale.edge_seconds / 2, is_busy=False)
    with running(peer), running(loop := ExportLoop(peer)):
        peer_idle = _measure(peer, loop, scale.edge_seconds / 2, is_busy=False)

    yield from _compare_shares("processor", f"Processor time, {_LOAD}", busy, peer_busy)
    yield from _compare_shares("idle", "Processor time, the same without messages", idle, peer_idle)
    parts = {name: size for name, size in busy.megabytes.items() if name != BROKER}
    yield Comparison(
        "edge-cost memory",
        f"Memory, {_LOAD}",
        Unit.MEGABYTES,
        _single_figures({**parts, **peer_busy.megabytes, BROKER: busy.megabytes[BROKER]}),
        {PIPELINE: _max_target(MAX_PIPELINE_MEGABYTES, busy.megabytes[PIPELINE])},
    )
    starts = {name: Figure(tuple(runs)) for name, runs in first_exports.items()}
    yield Comparison(
        "edge-cost start",
        "From the start of penstock up to the arrival of the first export",
        Unit.SECONDS,
        starts,
        {PIPELINE: _max_target(MAX_FIRST_EXPORT_SECONDS, starts[PIPELINE].median)},
        notes=("after penstock pipeline --archive-classes",),
    )


def _compare_shares(name: str, title: str, ours: Cost, peers: Cost) -> Iterator[Comparison]:
    for program, peer in ((PIPELINE, LOOP), (BROKER, LOOP_BROKER)):
        share, wanted = ours.shares[program], MAX_SHARES[name].get(program)
        yield Comparison(
            f"edge-cost {name} {program.removeprefix('Penstock ')}",
            title,
            Unit.CORE_SHARE,
            _single_figures({program: share, peer: peers.shares[peer]}),
            {program: _max_target(wanted, share)} if wanted else {},
        )


def _single_figures(values: dict[str, float]) -> dict[str, Figure]:
    return {name: Figure((value,)) for name, value in values.items()}


def _max_target(wanted: float, got: float) -> Target:
    return Target(wanted, got, is_maximum=True, is_ratio=False)


def _measure(up: Up, measured: Up | ExportLoop, seconds: float, *, is_busy: bool) -> Cost:
    time.sleep(_SETTLE_SECONDS if is_busy else _IDLE_SETTLE_SECONDS)
    before = up.count_arrived()
    shares = measure_shares(measured.groups, seconds)
    arrived = up.count_arrived() - before
    expected = seconds * MESSAGES_PER_SECOND
    if is_busy and arrived < _MIN_SHARE_OF_MESSAGES * expected:
        raise WrongAnswerError(f"{arrived} messages arrived, {expected:.0f} were expected")
    if not is_busy and arrived:
        raise WrongAnswerError(f"{arrived} messages arrived though no device runs")
    megabytes = {}
    for name, processes in measured.groups().items():
        megabytes[name] = memory_bytes(processes) / 1e6
        if name == PIPELINE:
            for part, members in _parts_of_pipeline(processes).items():
                megabytes[f"{PIPELINE}, {part}"] = memory_bytes(members) / 1e6
    return Cost(shares, megabytes)


def _parts_of_pipeline(processes: list[psutil.Process]) -> Groups:
    driver, *others = processes
    parts: Groups = {"driver": [driver], "Java": [], "workers": []}
    for process in others:
        parts["Java" if process.name() == "java" else "workers"].append(process)
    return parts
