"""The engine over a real store, with a clock that tests set."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from penstock.broker.exports.bandwidth import Bandwidth
from penstock.broker.exports.dead_letters import DeadLetters
from penstock.broker.exports.engine import Exports, Plan, WakeCondition
from penstock.broker.exports.export import Export
from penstock.broker.exports.progress import ReportBatch
from penstock.broker.exports.statuses import Statuses
from penstock.broker.exports.task_export import TaskExport
from penstock.broker.exports.work_source import Holder
from penstock.broker.streams import Stream, Streams
from penstock.model import MessageStreamDefinition, from_wire
from penstock.model.exporting import (
    AnyWork,
    DeliveryReport,
    MessageSlice,
    SkippedMessage,
    TaskEvent,
    TaskSlice,
    Upload,
    UploadAbort,
)
from penstock.model.statistics import ExportActivity
from penstock.model.status_message import Status, StatusLevel
from penstock.settings import Settings
from penstock.store.rows import ExportProgress
from penstock.store.store import Store
from penstock.store.stored_stream import ProgressChange
from penstock.wire.requests import PlanExportsRequest

BEGINNING = 1_700_000_000_000


def to_http(identifier: str = "e", **fields: Any) -> dict[str, Any]:
    return {"http": [{"identifier": identifier, "uri": "http://127.0.0.1/", **fields}]}


def to_s3(identifier: str = "e", **fields: Any) -> dict[str, Any]:
    return {"s3TaskExecutor": [{"identifier": identifier, **fields}]}


def status_config(name: str = "status", level: StatusLevel = StatusLevel.TRACE) -> dict[str, Any]:
    """An export's statusConfig, with all levels by default."""
    return {"statusConfig": {"statusStreamName": name, "statusLevel": level}}


def task(number: int) -> dict[str, Any]:
    return {"inputUrl": f"file:/data/{number}", "bucket": "a-bucket", "key": f"key/{number}"}


def event(number: int, status: Status = Status.Success, **fields: Any) -> TaskEvent:
    plain = {"message": f"{number} is {status.name}", "time": BEGINNING, "task": task(number)}
    return TaskEvent(sequence_number=number, status=status, **{**plain, **fields})


def upload(number: int, upload_id: str = "u", **fields: Any) -> Upload:
    plain: dict[str, Any] = {
        "sequence_number": number,
        "bucket": "a-bucket",
        "key": f"key/{number}",
        "upload_id": upload_id,
        "began": BEGINNING,
        "fingerprint": "f",
        "size": 10_000_000,
        "part_size": 5_242_880,
    }
    return Upload(**{**plain, **fields})


def report(found: AnyWork, **fields: Any) -> DeliveryReport:
    """A final report: all messages have arrived, unless `fields` differ."""
    if isinstance(found, MessageSlice):
        first, end = found.first, found.end
        plain = {
            "stream_id": found.stream_id,
            "settled_end": end,
            "exported_messages": fields.get("settled_end", end) - fields.get("first", first),
        }
    else:
        first, plain = found.upload.sequence_number, {}
    plain |= {
        "lease": found.lease,
        "stream": found.stream,
        "identifier": found.identifier,
        "first": first,
    }
    return DeliveryReport(**{**plain, **fields})


def failure(found: AnyWork, **fields: Any) -> DeliveryReport:
    """A final report of a failure: no message has arrived."""
    plain: dict[str, Any] = {"error": "it is down"}
    if isinstance(found, MessageSlice):
        plain |= {"settled_end": fields.get("first", found.first), "exported_messages": 0}
    return report(found, **{**plain, **fields})


def interim(found: AnyWork, **fields: Any) -> DeliveryReport:
    """An interim report, without arrived messages."""
    return failure(found, **{"error": "", "is_final": False, **fields})


def skip(number: int) -> SkippedMessage:
    return SkippedMessage(number, f"{number} is malformed")


class _Timer:
    def cancel(self) -> None: ...


def _never(*_: object) -> _Timer:
    """Timers never fire: tests call the functions themselves."""
    return _Timer()


class Commit(NamedTuple):
    """Reports that are being stored."""

    batch: ReportBatch
    change: ProgressChange


class Workbench:
    def __init__(
        self,
        root: Path,
        *,
        kilobits_per_second: int | None = None,
        dead_letter_stream: str = "",
        gather_seconds: float = 0.0,
    ) -> None:
        self._root = root
        self._kilobits_per_second = kilobits_per_second
        self._dead_letter_stream = dead_letter_stream
        self._gather_seconds = gather_seconds
        self._executor = ThreadPoolExecutor(1)
        self.seconds = 5000.0
        self.now = BEGINNING
        self._open()

    def _open(self) -> None:
        self.store = Store(self._root)
        settings = Settings(root=str(self._root))
        self.streams = Streams(self.store, settings, self._executor)
        self.dead_letters = DeadLetters(self.streams, self._dead_letter_stream)
        self.statuses = Statuses(self.streams)
        self.bandwidth = Bandwidth(self._kilobits_per_second, lambda: self.seconds, _never)
        self.exports = Exports(
            self.store,
            self.streams,
            self.bandwidth,
            self.dead_letters,
            self.statuses,
            self._gather_seconds,
            lambda: self.seconds,
            lambda: self.now,
        )

    def restart(self) -> None:
        self.exports.finish()
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
        asyncio.run(self.streams.create(self.define(name, exports, **fields)))
        return self.append(name, count)

    def update(self, name: str, exports: dict[str, Any], **fields: Any) -> None:
        asyncio.run(self.streams.update(self.define(name, exports, **fields)))

    def delete(self, name: str) -> None:
        asyncio.run(self.streams.delete(name))

    def append(self, name: str, count: int, size: int = 10) -> Stream:
        stream = self.streams.find(name)
        for _ in range(count):
            stream.append([b"x" * size], self.now)
        return stream

    def create_tasks(self, name: str, count: int, **fields: Any) -> Stream:
        """Creates a stream of S3 tasks, and a status stream."""
        if "status" not in self.streams.names():
            self.create("status", {})
        self.create(name, to_s3(**status_config()), **fields)
        return self.append_tasks(name, count)

    def append_tasks(self, name: str, count: int) -> Stream:
        stream = self.streams.find(name)
        for number in range(stream.log.end, stream.log.end + count):
            stream.append([json.dumps(task(number)).encode()], self.now)
        return stream

    def written_statuses(self, name: str = "status") -> list[tuple[str, int, str]]:
        """The status, sequence number and message of each status message."""
        return [
            (
                Status(each["status"]).name,
                each["statusContext"]["sequenceNumber"],
                each["message"],
            )
            for each in self.status_messages(name)
        ]

    def status_messages(self, name: str = "status") -> list[dict[str, Any]]:
        log = self.streams.find(name).log
        payloads = [log.read(n, n + 1, 1).payloads[0] for n in range(log.oldest, log.end)]
        return [json.loads(payload) for payload in payloads]

    def progress(self, name: str, identifier: str = "e") -> ExportProgress:
        return self.streams.find(name).stored.progress[identifier]

    def export(self, name: str, identifier: str = "e") -> Export:
        return self.exports.of(self.streams.find(name))[identifier]

    def task_export(self, name: str, identifier: str = "e") -> TaskExport:
        export = self.export(name, identifier)
        assert isinstance(export, TaskExport)
        return export

    def activity(self, name: str, identifier: str = "e") -> ExportActivity:
        return self.exports.activities(self.streams.find(name))[identifier]

    # Requests of a task

    def request(self, task: str = "t", pipeline: str = "p", **fields: Any) -> PlanExportsRequest:
        plain = {"lease_millis": 10_000, **fields}
        return PlanExportsRequest(request_id="r", pipeline=pipeline, task=task, **plain)

    def request_plan(self, *, sees: Callable[[str], bool] = lambda _: True, **fields: Any) -> Plan:
        return self._plan_with_condition(sees, **fields)[0]

    def _plan_with_condition(
        self, sees: Callable[[str], bool], **fields: Any
    ) -> tuple[Plan, WakeCondition]:
        return self.exports.plan(self.request(**fields), sees, self.now)

    def plan(self, **fields: Any) -> list[AnyWork]:
        return self.request_plan(**fields).work

    def plan_one(self, **fields: Any) -> MessageSlice:
        (found,) = self.plan(**fields)
        assert isinstance(found, MessageSlice)
        return found

    def plan_file(self, **fields: Any) -> TaskSlice:
        (found,) = self.plan(**fields)
        assert isinstance(found, TaskSlice)
        return found

    def plan_aborts(self, **fields: Any) -> list[UploadAbort]:
        return [each for each in self.plan(**fields) if isinstance(each, UploadAbort)]

    def plan_abort(self, **fields: Any) -> UploadAbort:
        (found,) = self.plan(**fields)
        assert isinstance(found, UploadAbort)
        return found

    def wake_condition(
        self, *, sees: Callable[[str], bool] = lambda _: True, **fields: Any
    ) -> WakeCondition:
        """The wake condition of another task, so that the leases of the first one stay."""
        return self._plan_with_condition(sees, **{"task": "other", **fields})[1]

    def disconnect(self, task: str = "t", pipeline: str = "p") -> None:
        self.exports.note_disconnect(Holder(pipeline, task))

    def begin_commit(self, *reports: DeliveryReport) -> Commit:
        if self.dead_letters.needs_stream(reports):
            asyncio.run(self.dead_letters.create_stream())
        batch = self.exports.accept(reports, self.now)
        change = self.store.change_progress(batch.progress(), batch.uploads())
        return Commit(batch, change)

    def finish_commit(self, commit: Commit) -> None:
        self.statuses.sync()()
        commit.change.store()
        commit.change.apply()
        self.exports.apply(commit.batch)

    def cancel_commit(self, commit: Commit) -> None:
        """Cancels reports, as after a failure of the disk."""
        self.exports.cancel(commit.batch)

    def commit(self, *reports: DeliveryReport) -> int:
        """Accepts and applies reports as the broker does; returns how many changed something."""
        commit = self.begin_commit(*reports)
        self.finish_commit(commit)
        return len(commit.batch.accepted)

    def accepted(self, *reports: DeliveryReport) -> list[str]:
        """Accepts and applies reports as the broker does; returns the accepted leases."""
        commit = self.begin_commit(*reports)
        self.finish_commit(commit)
        return commit.batch.accepted_leases()
