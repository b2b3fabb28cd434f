"""Samples of the broker's statistics: one a second for the history, and one for each answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple

from penstock.broker.server import Broker
from penstock.model.statistics import Statistics, StreamStatistics
from penstock.web.history import STEP_MILLIS, Counts, ExportKey, History

logger = logging.getLogger(__name__)

# Limits of answers about all streams: the share of the event loop's time, and the pause between
# them. Scrapes must not slow down a broker with thousands of streams.
_MAX_SHARE = 0.1
_MAX_PAUSE_SECONDS = 1.0
# The same limit for samples of the history.
_MAX_SAMPLE_SHARE = 0.05


class Sampler:
    """Adds a sample to the history once a second, until it is stopped."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self.history = History()
        self._record()

    def _record(self) -> None:
        began = time.thread_time()
        try:
            statistics = self.sample()
            self.history.add(
                statistics.time,
                _all_counts(self._broker, statistics),
                ((stream.name, _counts(stream)) for stream in statistics.streams),
            )
            self.history.exports.add(statistics.time, _exported(statistics))
        except Exception:
            logger.exception("cannot sample the broker's statistics")
        # Aligned to full steps, so that the durations of samples cause no drift. Slow samples skip
        # steps.
        seconds = STEP_MILLIS / 1000
        pause = max((time.thread_time() - began) / _MAX_SAMPLE_SHARE, seconds)
        steps = (self._loop.time() + pause) // seconds
        self._timer = self._loop.call_at(steps * seconds, self._record)

    def sample(self) -> Statistics:
        return self._broker.statistics()

    def stop(self) -> None:
        self._timer.cancel()


class _Answer(NamedTuple):
    sample: int
    text: bytes


class SharedAnswers:
    """Answers about all streams that concurrent requests share. One is written at a time.

    The sample of an answer is taken after its request arrived, so it contains all changes before
    the request.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._answers: dict[Hashable, _Answer] = {}
        self._writing = asyncio.Lock()
        self._requests = 0
        self._samples = 0
        self._next_write = 0.0

    async def get(self, key: Hashable, write: Callable[[Statistics], Awaitable[bytes]]) -> bytes:
        """Returns an answer. Concurrent requests with the same key share it."""
        earlier_samples = self._samples
        self._requests += 1
        try:
            async with self._writing:
                answer = self._answers.get(key)
                if answer is None or answer.sample <= earlier_samples:
                    answer = await self._write(write)
                    self._answers[key] = answer
                return answer.text
        finally:
            self._requests -= 1
            if not self._requests:
                self._answers.clear()

    async def _write(self, write: Callable[[Statistics], Awaitable[bytes]]) -> _Answer:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(self._next_write - loop.time(), 0))
        began = loop.time()
        self._samples += 1
        answer = _Answer(self._samples, await write(self._sampler.sample()))
        ended = loop.time()
        pause = (ended - began) * (1 / _MAX_SHARE - 1)
        self._next_write = ended + min(pause, _MAX_PAUSE_SECONDS)
        return answer


def _counts(stream: StreamStatistics) -> Counts:
    exports = stream.exports
    return Counts(
        messages_appended=stream.messages_appended,
        bytes_appended=stream.bytes_appended,
        messages_exported=sum(each.exported_messages for each in exports),
        bytes_exported=sum(each.exported_bytes for each in exports),
        messages_behind=sum(each.messages_behind for each in exports),
    )


def _exported(statistics: Statistics) -> dict[ExportKey, int]:
    return {
        (stream.name, export.identifier): export.exported_messages
        for stream in statistics.streams
        for export in stream.exports
    }


def _all_counts(broker: Broker, statistics: Statistics) -> Counts:
    totals = broker.exports.totals.values()
    return Counts(
        statistics.messages_appended,
        statistics.bytes_appended,
        statistics.messages_read,
        statistics.bytes_read,
        sum(each.messages for each in totals),
        sum(each.bytes for each in totals),
        sum(each.messages_behind for stream in statistics.streams for each in stream.exports),
    )
