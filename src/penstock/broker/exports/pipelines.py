"""The pipelines that ask a broker for work, and how long they take for it.

A batch of a lane begins when its pipeline is given slices and ends when it asks for the next ones:
that is all of it, with what Spark itself needs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.broker.statistics import Durations
from penstock.model.exporting import Lane, PipelineDescription

logger = logging.getLogger(__name__)

# Of a batch that has hardly anything to do, and of one that waits for files.
_BATCH_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0)
_MOST_BATCHES = 200
# Those that are gone are forgotten when so many others came.
_MOST_PIPELINES = 8


class Work(NamedTuple):
    """What a pipeline was given at once."""

    slices: int
    messages: int


class Batch(NamedTuple):
    pipeline: str
    lane: Lane
    # Of this lane, since the pipeline was started.
    number: int
    # In milliseconds since 1970.
    started: int
    seconds: float
    work: Work


class _Begun(NamedTuple):
    # On the loop's clock, and in milliseconds since 1970.
    at: float
    started: int
    work: Work


class LaneActivity:
    """How one lane of a pipeline is doing."""

    def __init__(self) -> None:
        self.is_connected = False
        self.batches = 0
        self.last: Batch | None = None
        self.begun: _Begun | None = None


class Pipeline:
    """What is known of one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.about: PipelineDescription | None = None
        self.lanes: dict[Lane, LaneActivity] = {}
        # In milliseconds since 1970.
        self.last_seen = 0

    def __str__(self) -> str:
        about = self.about
        spark = f" on Spark {about.spark_version}, {about.master}" if about else ""
        return f"{self.name}{spark}"

    @property
    def is_connected(self) -> bool:
        return any(lane.is_connected for lane in self.lanes.values())


class Pipelines:
    """All that asked since the broker was started. Called from the event loop only."""

    def __init__(self, clock: Callable[[], float], now_millis: Callable[[], int]) -> None:
        self._clock = clock
        self._now_millis = now_millis
        self._known: dict[str, Pipeline] = {}
        self.batches: deque[Batch] = deque(maxlen=_MOST_BATCHES)
        self.durations = {lane: Durations(_BATCH_SECONDS) for lane in Lane}

    def __iter__(self) -> Iterator[Pipeline]:
        return iter(self._known.values())

    def note_asking(self, name: str, lane: Lane, about: PipelineDescription | None) -> None:
        """It asks for work: what it was given before is done, as far as it ever will be."""
        pipeline = self._known.setdefault(name, Pipeline(name))
        pipeline.about = about or pipeline.about
        if not pipeline.is_connected:
            logger.info("a pipeline asks for work: %s", pipeline)
        pipeline.last_seen = self._now_millis()
        activity = pipeline.lanes.setdefault(lane, LaneActivity())
        activity.is_connected = True
        if activity.begun is not None:
            self._end_batch(pipeline, lane, activity, activity.begun)
        self._forget_oldest()

    def _end_batch(
        self, pipeline: Pipeline, lane: Lane, activity: LaneActivity, begun: _Begun
    ) -> None:
        activity.begun = None
        activity.batches += 1
        seconds = self._clock() - begun.at
        activity.last = Batch(
            pipeline.name, lane, activity.batches, begun.started, seconds, begun.work
        )
        self.batches.append(activity.last)
        self.durations[lane].note(seconds)

    def note_given(self, name: str, lane: Lane, work: Work) -> None:
        pipeline = self._known[name]
        pipeline.last_seen = self._now_millis()
        if work.slices:
            pipeline.lanes[lane].begun = _Begun(self._clock(), pipeline.last_seen, work)

    def note_departure(self, name: str, lane: Lane) -> None:
        """Its connection is gone; it may come back."""
        pipeline = self._known.get(name)
        if pipeline is not None:
            pipeline.last_seen = self._now_millis()
            pipeline.lanes[lane].is_connected = False
            # Nobody knows how long this one took.
            pipeline.lanes[lane].begun = None
            if not pipeline.is_connected:
                logger.info("a pipeline has gone: %s", pipeline)

    def _forget_oldest(self) -> None:
        gone = [each for each in self._known.values() if not each.is_connected]
        gone.sort(key=lambda each: each.last_seen)
        for pipeline in gone[: max(len(self._known) - _MOST_PIPELINES, 0)]:
            del self._known[pipeline.name]
