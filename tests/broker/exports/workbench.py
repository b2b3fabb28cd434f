"""The engine over a real store, on a clock that goes when it is told to."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from penstock.broker.exports.dead_letters import DeadLetters
from penstock.broker.exports.engine import Exports, Settled
from penstock.broker.exports.export import Export
from penstock.broker.exports.pacing import Bandwidth
from penstock.broker.settings import Settings
from penstock.broker.streams import Stream, Streams
from penstock.model import MessageStreamDefinition, from_wire
from penstock.model.exporting import ExportReport, ExportSlice, Lane, SkippedMessage
from penstock.store.catalog import ExportProgress
from penstock.store.store import ProgressChange, Store
from penstock.wire.requests import PlanExportsRequest

BEGINNING = 1_700_000_000_000


def to_http(identifier: str = "e", **fields: Any) -> dict[str, Any]:
    return {"http": [{"identifier": identifier, "uri": "http://127.0.0.1/", **fields}]}


def report(found: ExportSlice, **fields: Any) -> ExportReport:
    """That all of a slice has arrived, but for what the fields say."""
    plain: dict[str, Any] = {
        "lease": found.lease,
        "stream": found.stream,
        "stream_id": found.stream_id,
        "identifier": found.config["identifier"],
        "first": found.first,
        "settled_end": found.end,
        "exported_messages": fields.get("settled_end", found.end) - found.first,
    }
    return ExportReport(**{**plain, **fields})


def failure(found: ExportSlice, **fields: Any) -> ExportReport:
    plain = {"settled_end": found.first, "exported_messages": 0, "error": "it is down"}
    return report(found, **{**plain, **fields})


def skip(number: int) -> SkippedMessage:
    return SkippedMessage(number, f"{number} is malformed")


class Commit(NamedTuple):
    """Reports on their way to the disk."""

    settled: list[Settled]
    change: ProgressChange


class Workbench:
    def __init__(
        self, root: Path, *, kilobits_a_second: int | None = None, dead_letter_stream: str = ""
    ) -> None:
        self._root = root
        self._kilobits_a_second = kilobits_a_second
        self._dead_letter_stream = dead_letter_stream
        self._executor = ThreadPoolExecutor(1)
        self.seconds = 5000.0
        self.now = BEGINNING
        self._open()

    def _open(self) -> None:
        self.store = Store(self._root)
        settings = Settings(root=str(self._root))
        self.streams = Streams(self.store, settings, self._executor)
        self.dead_letters = DeadLetters(self.streams, self._dead_letter_stream)
        bandwidth = Bandwidth(self._kilobits_a_second)
        self.exports = Exports(self.streams, bandwidth, self.dead_letters, lambda: self.seconds)

    def restart(self) -> None:
        self.store.close()
        self._open()

    def close(self) -> None:
        self.store.close()
        self._executor.shutdown()

    def wait(self, seconds: float) -> None:
        self.seconds += seconds
        self.now += round(seconds * 1000)

    # Streams

    def define(self, name: str, exports: dict[str, Any], **fields: Any) -> MessageStreamDefinition:
        plain = {"name": name, "strategyOnFull": 1, "exportDefinition": exports}
        return from_wire({**plain, **fields}, MessageStreamDefinition)

    def create(self, name: str, exports: dict[str, Any], count: int = 0, **fields: Any) -> Stream:
        self.streams.create(self.define(name, exports, **fields))
        return self.append(name, count)

    def update(self, name: str, exports: dict[str, Any], **fields: Any) -> None:
        self.streams.update(self.define(name, exports, **fields))

    def append(self, name: str, count: int, size: int = 10) -> Stream:
        stream = self.streams.find(name)
        for _ in range(count):
            stream.append([b"x" * size], self.now)
        return stream

    def progress(self, name: str, identifier: str = "e") -> ExportProgress:
        return self.streams.find(name).stored.progress[identifier]

    def export(self, name: str, identifier: str = "e") -> Export:
        return self.exports._of(self.streams.find(name))[identifier]

    # What a pipeline does

    def plan(
        self,
        lane: Lane = Lane.steady,
        *,
        pipeline: str = "p",
        sees: Callable[[str], bool] = lambda _: True,
        **fields: Any,
    ) -> list[ExportSlice]:
        plain = {"max_bytes": 1 << 26, "lease_millis": 10_000, **fields}
        request = PlanExportsRequest(request_id="r", pipeline=pipeline, lane=lane, **plain)
        return self.exports.plan(request, sees, self.now)

    def plan_one(self, lane: Lane = Lane.steady, **fields: Any) -> ExportSlice:
        (found,) = self.plan(lane, **fields)
        return found

    def begin_commit(self, *reports: ExportReport) -> Commit:
        settled = self.exports.settle(reports, self.now)
        progress: dict[str, list[ExportProgress]] = {}
        for each in settled:
            progress.setdefault(each.report.stream, []).append(each.progress)
        return Commit(settled, self.store.change_progress(progress))

    def finish_commit(self, commit: Commit) -> None:
        commit.change.store()
        commit.change.apply()
        self.exports.apply(commit.settled)

    def commit(self, *reports: ExportReport) -> int:
        """As the broker does; how many of them counted."""
        commit = self.begin_commit(*reports)
        self.finish_commit(commit)
        return len(commit.settled)
