"""The courier of a task: it delivers slices side by side, and leaves those behind that hang.

A call to a destination cannot be interrupted. So deliveries have threads, and one that is still
waiting when time is up is left to itself: what it was about to deliver counts as not delivered,
and the export moves to a lane where nobody else is kept waiting.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque

import msgspec

from penstock.model.export import CONFIG_OF_KIND
from penstock.model.exporting import ExportReport, Lane, SkippedMessage, SliceHeader
from penstock.pipeline.delivery import Attempt, Budget, Delivery
from penstock.pipeline.destinations import open_destination
from penstock.pipeline.destinations.destination import (
    DestinationSettings,
    Export,
    Messages,
    UnavailableError,
)
from penstock.pipeline.lanes import LIMITS, LaneLimits
from penstock.spark.mapped import is_here

logger = logging.getLogger(__name__)

_REASON_LENGTH = 1000
# More than any call has; what is left out is sent twice.
_MOST_ARRIVED = 1024


class _Parcel:
    """A slice, and its delivery as far as it got."""

    def __init__(self, header: SliceHeader, messages: Messages) -> None:
        self.header = header
        self.messages = messages
        self.attempt: Attempt | None = None
        # Why there is no attempt.
        self.error = ""
        self.began = 0.0
        self.is_over = False


class Courier:
    """Delivers what it is given, the first given first. For one task, whose thread calls it."""

    def __init__(self, limits: LaneLimits, threads: int, settings: DestinationSettings) -> None:
        self._limits = limits
        self._settings = settings
        self._most_threads = threads
        # When it was given the first: what reading that took is not its time.
        self._began = math.inf
        self._condition = threading.Condition()
        self._waiting: deque[_Parcel] = deque()
        self._started: list[_Parcel] = []
        self._threads = 0

    def send(self, header: SliceHeader, messages: Messages) -> None:
        """Delivers it as soon as a thread is free."""
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
            return [self._report(parcel) for parcel in self._started]

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
        found = parcel.header.slice
        try:
            with contextlib.closing(open_destination(found.kind, self._export(parcel))) as opened:
                parcel.attempt = Attempt(opened, parcel.messages, found.end, budget)
                parcel.attempt.run()
        except UnavailableError as error:
            parcel.error = str(error)
        except Exception as error:
            # Whatever it is, the broker has to hear of it: it is what the user looks at.
            parcel.error = f"{type(error).__name__}: {error}"
            logger.exception("an export of stream %r failed", found.stream)

    def _export(self, parcel: _Parcel) -> Export:
        found, root = parcel.header.slice, parcel.header.root
        return Export(
            found.stream,
            found.stream_id,
            msgspec.convert(found.config, CONFIG_OF_KIND[found.kind]),
            self._settings,
            root if is_here(root, parcel.header.instance) else None,
            self._limits.patience,
        )

    def _report(self, parcel: _Parcel) -> ExportReport:
        found = parcel.header.slice
        if parcel.attempt is None:
            delivery = Delivery(settled_end=found.first)
        else:
            delivery = parcel.attempt.delivery()
        elapsed = time.monotonic() - parcel.began
        error = parcel.error or delivery.error
        was_slow = delivery.timed_out or delivery.slowest_call > LIMITS[Lane.steady].patience
        if not parcel.is_over:
            error, was_slow = f"no answer in {elapsed:.1f} seconds", True
        known = [number for number in found.arrived if number >= delivery.settled_end]
        pause = max(delivery.retry_after or 0.0, delivery.pause)
        return ExportReport(
            lease=found.lease,
            stream=found.stream,
            stream_id=found.stream_id,
            identifier=found.config["identifier"],
            first=found.first,
            settled_end=delivery.settled_end,
            arrived=sorted({*known, *delivery.arrived})[:_MOST_ARRIVED],
            exported_messages=delivery.exported_messages,
            exported_bytes=delivery.exported_bytes,
            skipped=[
                SkippedMessage(number, reason[:_REASON_LENGTH])
                for number, reason in delivery.skipped
            ],
            sent_bytes=delivery.sent_bytes,
            error=error[:_REASON_LENGTH],
            pause_millis=int(pause * 1000),
            elapsed_millis=int(elapsed * 1000),
            was_slow=was_slow,
        )
