"""The courier of a task: it delivers slices side by side, and leaves those behind that hang.

A call to a destination cannot be interrupted. So deliveries have threads, and one that is still
waiting when time is up is left to itself: what it was about to deliver counts as not delivered,
and the export moves to a lane where nobody else is kept waiting.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from penstock.errors import StreamManagerException
from penstock.model.export import CONFIG_OF_KIND
from penstock.model.exporting import (
    ABANDONED_UPLOAD,
    ExportReport,
    ExportSlice,
    Lane,
    SkippedMessage,
    SliceHeader,
)
from penstock.model.validation import convert
from penstock.pipeline.delivery import Attempt, Budget
from penstock.pipeline.destinations import import_destination, open_destination
from penstock.pipeline.destinations.destination import (
    DestinationSettings,
    Export,
    Messages,
    UnavailableError,
)
from penstock.pipeline.lanes import LIMITS, LaneLimits
from penstock.pipeline.messenger import Echo
from penstock.pipeline.settlements import Delivery, UploadedFile

logger = logging.getLogger(__name__)

_REASON_LENGTH = 1000
# Kinds of exports that use files of the broker's machine.
_USING_FILES = ("s3_task_executor", "iot_analytics")
# More than any call has; what is left out is sent twice.
_MOST_ARRIVED = 1024


class Delivering(Protocol):
    """A delivery under way. One thread runs it, and another one asks what has become of it."""

    def run(self) -> None: ...
    def delivery(self) -> Delivery: ...
    def leave_behind(self) -> None: ...


class _Parcel:
    """A slice, and its delivery as far as it got."""

    def __init__(self, header: SliceHeader, messages: Messages) -> None:
        self.header = header
        self.messages = messages
        self.attempt: Delivering | None = None
        # Why there is no attempt.
        self.error = ""
        self.began = 0.0
        self.is_over = False


def _get_ready(kind: str) -> None:
    """What a process imports for its first delivery is not the time of that delivery."""
    # What is wrong is found again, and told, when it is delivered.
    with contextlib.suppress(KeyError, ImportError):
        if kind in (ABANDONED_UPLOAD, "s3_task_executor"):
            importlib.import_module("penstock.pipeline.uploads.attempt")
        else:
            import_destination(kind)


class Courier:
    """Delivers what it is given, the first given first. For one task, whose thread calls it."""

    def __init__(
        self,
        limits: LaneLimits,
        threads: int,
        settings: DestinationSettings,
        # Tells the broker at once.
        tell: Callable[[ExportReport], Echo],
        # The broker's directory; None if the broker runs on another machine.
        find_root: Callable[[SliceHeader], str | None],
    ) -> None:
        self._limits = limits
        self._settings = settings
        self._tell = tell
        self._find_root = find_root
        self._most_threads = threads
        # When it was given the first: what reading that took is not its time.
        self._began = math.inf
        self._condition = threading.Condition()
        self._waiting: deque[_Parcel] = deque()
        self._started: list[_Parcel] = []
        self._threads = 0
        self._uploaded: dict[str, list[UploadedFile]] = {}

    def send(self, header: SliceHeader, messages: Messages) -> None:
        """Delivers it as soon as a thread is free."""
        _get_ready(header.slice.kind)
        with self._condition:
            self._began = min(self._began, time.monotonic())
            self._waiting.append(_Parcel(header, messages))
            if self._threads < self._most_threads:
                self._threads += 1
                # One that hangs must not keep the worker from ending.
                threading.Thread(target=self._work, name="penstock-courier", daemon=True).start()

    def finish(self) -> list[ExportReport]:
        """Waits for the deliveries as long as they may take, and tells what became of them.

        Of those that were never begun nothing is told: they are planned again.
        """
        with self._condition:
            seconds_left = self._began + self._limits.longest - time.monotonic()
            self._condition.wait_for(self._is_done, seconds_left)
            self._waiting.clear()
            for parcel in self._started:
                if not parcel.is_over and parcel.attempt is not None:
                    parcel.attempt.leave_behind()
            return [self._report(parcel) for parcel in self._started]

    @property
    def uploaded(self) -> dict[str, list[UploadedFile]]:
        """By lease: the files that arrived, of what `finish` has told."""
        return self._uploaded

    def _is_done(self) -> bool:
        return not self._waiting and all(parcel.is_over for parcel in self._started)

    def _work(self) -> None:
        while (parcel := self._next()) is not None:
            self._deliver(parcel)
            with self._condition:
                parcel.is_over = True
                self._condition.notify()

    def _next(self) -> _Parcel | None:
        with self._condition:
            if time.monotonic() > self._began + self._limits.seconds:
                self._waiting.clear()
            if not self._waiting:
                self._threads -= 1
                self._condition.notify()
                return None
            parcel = self._waiting.popleft()
            parcel.began = time.monotonic()
            self._started.append(parcel)
            return parcel

    def _deliver(self, parcel: _Parcel) -> None:
        budget = Budget(self._began + self._limits.seconds - time.monotonic())
        try:
            with self._begin(parcel, budget) as parcel.attempt:
                parcel.attempt.run()
        except UnavailableError as error:
            parcel.error = str(error)
        except Exception as error:
            # Whatever it is, the broker has to hear of it: it is what the user looks at.
            parcel.error = f"{type(error).__name__}: {error}"
            logger.exception("an export of stream %r failed", parcel.header.slice.stream)

    @contextlib.contextmanager
    def _begin(self, parcel: _Parcel, budget: Budget) -> Iterator[Delivering]:
        found = parcel.header.slice
        if found.kind == ABANDONED_UPLOAD:
            from penstock.pipeline.uploads.aborting import AbortAttempt

            yield AbortAttempt(found.uploads[0], self._limits.patience)
        elif found.kind == "s3_task_executor":
            from penstock.pipeline.uploads.allowance import Allowance
            from penstock.pipeline.uploads.attempt import TasksAttempt

            yield TasksAttempt(
                self._export(parcel),
                parcel.messages,
                found.end,
                found.uploads,
                found.time_to_live,
                Allowance(budget, found.max_sent_bytes),
                lambda delivery: self._tell_interim(found, delivery),
            )
        else:
            opened = open_destination(found.kind, self._export(parcel))
            with contextlib.closing(opened):
                yield Attempt(opened, parcel.messages, found.end, budget)

    def _tell_interim(self, found: ExportSlice, delivery: Delivery) -> Echo:
        echo = self._tell(_report_interim(found, delivery))
        with self._condition:
            # Slices of this task may wait as well, or want to be reported.
            others = bool(self._waiting) or any(parcel.is_over for parcel in self._started)
            return echo._replace(is_awaited=echo.is_awaited or others)

    def _export(self, parcel: _Parcel) -> Export:
        found = parcel.header.slice
        return Export(
            found.stream,
            found.stream_id,
            convert(found.config, CONFIG_OF_KIND[found.kind]),
            self._settings,
            self._root_for(parcel.header) if found.kind in _USING_FILES else None,
            self._limits.patience,
        )

    def _root_for(self, header: SliceHeader) -> str | None:
        try:
            return self._find_root(header)
        except (StreamManagerException, OSError) as error:
            reason = f"the broker does not say where its files are: {error}"
            raise UnavailableError(reason) from None

    def _report(self, parcel: _Parcel) -> ExportReport:
        found = parcel.header.slice
        if parcel.attempt is None:
            delivery = Delivery(settled_end=found.first, uploads=found.uploads)
        else:
            delivery = parcel.attempt.delivery()
        if delivery.uploaded:
            self._uploaded[found.lease] = delivery.uploaded
        elapsed = time.monotonic() - parcel.began
        error = parcel.error or delivery.error
        was_slow = delivery.timed_out or delivery.slowest_call > LIMITS[Lane.steady].patience
        if not parcel.is_over:
            error, was_slow = f"no answer in {elapsed:.1f} seconds", True
        end = delivery.settled_end
        known = [number for number in found.arrived if number >= end]
        read = bisect_left(parcel.messages.numbers, end)
        pause = max(delivery.retry_after or 0.0, delivery.pause)
        return ExportReport(
            lease=found.lease,
            stream=found.stream,
            stream_id=found.stream_id,
            identifier=found.config["identifier"],
            first=found.first,
            settled_end=end,
            arrived=sorted({*known, *delivery.arrived})[:_MOST_ARRIVED],
            exported_messages=delivery.exported_messages,
            exported_bytes=delivery.exported_bytes,
            skipped=[
                SkippedMessage(number, reason[:_REASON_LENGTH])
                for number, reason in delivery.skipped
            ],
            missing=max(end - found.first - read - (len(found.arrived) - len(known)), 0),
            sent_bytes=delivery.sent_bytes,
            error=error[:_REASON_LENGTH],
            pause_millis=int(pause * 1000),
            elapsed_millis=int(elapsed * 1000),
            was_slow=was_slow,
            events=delivery.events,
            uploads=delivery.uploads,
            abandoned=delivery.abandoned,
        )


def _report_interim(found: ExportSlice, delivery: Delivery) -> ExportReport:
    return ExportReport(
        lease=found.lease,
        stream=found.stream,
        stream_id=found.stream_id,
        identifier=found.config["identifier"],
        first=found.first,
        settled_end=found.first,
        events=delivery.events,
        uploads=delivery.uploads,
        abandoned=delivery.abandoned,
        is_interim=True,
    )
