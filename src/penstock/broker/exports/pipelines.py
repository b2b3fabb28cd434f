"""The pipelines of a broker and their tasks, as status, metrics and dashboard show them."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from penstock.broker.counters import Durations
from penstock.broker.exports.work_source import Holder
from penstock.model.export_definition import S3_TASK_EXECUTOR
from penstock.model.exporting import (
    AnyWork,
    DeliveryReport,
    MessageSlice,
    PipelineDescription,
    UploadAbort,
)

logger = logging.getLogger(__name__)

# From a single call to a long upload.
_DELIVERY_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0, 600.0)
# For each kind: frequent deliveries do not evict rare ones, such as long uploads.
_MAX_DELIVERIES = 60
# Disconnected pipelines and tasks are evicted when there are more.
_MAX_PIPELINES = 8
_MAX_TASKS = 16


class Assignment(NamedTuple):
    """Work that a task is doing."""

    work: AnyWork
    # On the loop's clock, and in milliseconds since 1970.
    since: float
    started: int

    @property
    def kind(self) -> str:
        return S3_TASK_EXECUTOR if isinstance(self.work, UploadAbort) else self.work.kind

    @property
    def messages(self) -> int:
        work = self.work
        return work.end - work.first if isinstance(work, MessageSlice) else 0


class FinishedDelivery(NamedTuple):
    """Work that a task has finished."""

    holder: Holder
    lease: str
    kind: str
    stream: str
    identifier: str
    messages: int
    # In milliseconds since 1970.
    started: int
    seconds: float
    error: str

    @property
    def ended(self) -> float:
        """In milliseconds since 1970."""
        return self.started + 1000 * self.seconds


class PipelineTask:
    """One resident task of a pipeline."""

    def __init__(self, name: str, started: int) -> None:
        self.name = name
        # In milliseconds since 1970.
        self.started = started
        self.last_seen = started
        self.is_connected = True
        # By lease.
        self.assignments: dict[str, Assignment] = {}
        self.deliveries = 0
        self.messages = 0


class Pipeline:
    def __init__(self, name: str) -> None:
        self.name = name
        self.about: PipelineDescription | None = None
        self.tasks: dict[str, PipelineTask] = {}
        # In milliseconds since 1970.
        self.last_seen = 0

    def __str__(self) -> str:
        about = self.about
        spark = f" on Spark {about.spark_version}, {about.master}" if about else ""
        return f"{self.name}{spark}"

    @property
    def is_connected(self) -> bool:
        return any(task.is_connected for task in self.tasks.values())


class Pipelines:
    """Pipelines that requested work since the start. Called from the event loop only."""

    def __init__(self, clock: Callable[[], float], now_millis: Callable[[], int]) -> None:
        self._clock = clock
        self._now_millis = now_millis
        self._known: dict[str, Pipeline] = {}
        # By kind.
        self._deliveries: defaultdict[str, deque[FinishedDelivery]] = defaultdict(
            lambda: deque(maxlen=_MAX_DELIVERIES)
        )
        self.durations: defaultdict[str, Durations] = defaultdict(
            lambda: Durations(_DELIVERY_SECONDS)
        )

    def __iter__(self) -> Iterator[Pipeline]:
        return iter(self._known.values())

    @property
    def deliveries(self) -> list[FinishedDelivery]:
        """The latest deliveries of each kind, in the order in which they ended."""
        latest = chain.from_iterable(self._deliveries.values())
        return sorted(latest, key=lambda each: each.ended)

    def note_request(
        self, holder: Holder, holding: Sequence[str], about: PipelineDescription | None
    ) -> None:
        """Notes that a task requests work, and which leases it holds."""
        now = self._now_millis()
        pipeline = self._known.setdefault(holder.pipeline, Pipeline(holder.pipeline))
        pipeline.about = about or pipeline.about
        if not pipeline.is_connected:
            logger.info("pipeline connected: %s", pipeline)
        task = pipeline.tasks.setdefault(holder.task, PipelineTask(holder.task, now))
        task.is_connected = True
        task.last_seen = pipeline.last_seen = now
        for lease in task.assignments.keys() - set(holding):
            del task.assignments[lease]
        _evict_oldest(self._known, _MAX_PIPELINES)
        _evict_oldest(pipeline.tasks, _MAX_TASKS)

    def note_work(self, holder: Holder, work: Sequence[AnyWork]) -> None:
        """Notes that a task gets work."""
        task = self._find(holder)
        if task is not None:
            now = self._clock(), self._now_millis()
            task.assignments.update((each.lease, Assignment(each, *now)) for each in work)

    def note_report(self, holder: Holder, report: DeliveryReport) -> None:
        """Notes an accepted report."""
        task = self._find(holder)
        if task is None:
            return
        task.messages += report.exported_messages
        assignment = task.assignments.get(report.lease)
        if assignment is None or not report.is_final:
            return
        del task.assignments[report.lease]
        task.deliveries += 1
        seconds = self._clock() - assignment.since
        kind = assignment.kind
        self.durations[kind].note(seconds)
        delivery = FinishedDelivery(
            holder,
            report.lease,
            kind,
            report.stream,
            report.identifier,
            assignment.messages,
            assignment.started,
            seconds,
            report.error,
        )
        self._deliveries[kind].append(delivery)

    def note_disconnect(self, holder: Holder) -> None:
        """Notes that the connection of a task is closed. The task may reconnect."""
        task = self._find(holder)
        if task is None:
            return
        pipeline = self._known[holder.pipeline]
        task.is_connected = False
        task.last_seen = pipeline.last_seen = self._now_millis()
        if not pipeline.is_connected:
            logger.info("pipeline disconnected: %s", pipeline)

    def count_tasks(self, pipeline: str) -> int:
        """The number of connected tasks that deliver."""
        known = self._known.get(pipeline)
        return sum(task.is_connected for task in known.tasks.values()) if known is not None else 0

    def _find(self, holder: Holder) -> PipelineTask | None:
        pipeline = self._known.get(holder.pipeline)
        return pipeline.tasks.get(holder.task) if pipeline is not None else None


def _evict_oldest(known: dict[str, Any], max_known: int) -> None:
    """Evicts disconnected pipelines or tasks, the least recently seen first."""
    if len(known) > max_known:
        idle = [name for name, each in known.items() if not each.is_connected]
        idle.sort(key=lambda name: known[name].last_seen)
        for name in idle[: len(known) - max_known]:
            del known[name]
