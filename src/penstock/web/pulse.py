"""A look at the broker, once a second and shared by all who want to know."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple

from penstock.broker.server import Broker
from penstock.model.statistics import Statistics, StreamStatistics
from penstock.web.history import STEP_MILLIS, Counts, ExportKey, History

logger = logging.getLogger(__name__)

# Somebody who asks is shown nothing older.
_FRESH_SECONDS = 0.25


class Pulse:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._looked_at = -1.0
        self._changed = -1
        # How often it was looked: of two looks the one with the larger number is newer.
        self.looks = 0
        self.history = History()
        self._beat()

    def _beat(self) -> None:
        # By the clock, so that samples are a second apart although each takes a moment.
        seconds = STEP_MILLIS / 1000
        now = self._loop.time()
        self._timer = self._loop.call_at((now // seconds + 1) * seconds, self._beat)
        try:
            self._look()
            self.history.add(
                self._statistics.time,
                _all_counts(self._broker, self._statistics),
                ((stream.name, _counts(stream)) for stream in self._statistics.streams),
            )
            self.history.exports.add(self._statistics.time, _exported(self._statistics))
        except Exception:
            logger.exception("the broker cannot be looked at")

    def look(self) -> Statistics:
        """How the broker is doing, or was a moment ago."""
        is_old = self._loop.time() - self._looked_at > _FRESH_SECONDS
        if is_old or self._changed != self._broker.streams.changed:
            self._look()
        return self._statistics

    def _look(self) -> None:
        self._statistics = self._broker.statistics()
        self._looked_at = self._loop.time()
        self._changed = self._broker.streams.changed
        self.looks += 1

    def stop(self) -> None:
        self._timer.cancel()


class _Copy(NamedTuple):
    look: int
    text: bytes


class Copies:
    """What is written down of a look: once for all who see the same, and never two at a time.

    Nobody is shown anything older than `Pulse.look` would have shown him when he asked.
    """

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._copies: dict[Hashable, _Copy] = {}
        self._writing = asyncio.Lock()

    async def get(self, sight: Hashable, write: Callable[[Statistics], Awaitable[bytes]]) -> bytes:
        """The sight is the same for all for whom the same would be written."""
        self._pulse.look()
        wanted = self._pulse.looks
        async with self._writing:
            copy = self._copies.get(sight)
            if copy is None or copy.look < wanted:
                # Not that of before: others may have been waited for.
                statistics = self._pulse.look()
                look = self._pulse.looks
                copy = _Copy(look, await write(statistics))
                # Nobody will ask for what is older.
                newest = {key: each for key, each in self._copies.items() if each.look == look}
                self._copies = {**newest, sight: copy}
            return copy.text


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
