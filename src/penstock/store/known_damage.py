"""Known damage of one stream: ranges of unreadable messages, each with a reason.

Recovery and reads add ranges. Gaps that a salvage left are not damage. Each range is logged once,
with a rate limit, so that a stream with much damage does not fill the log. Thread-safe.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple

logger = logging.getLogger(__name__)

# Ranges that are logged within a minute. Further ones are counted.
_MAX_LINES = 10
_MINUTE_SECONDS = 60.0
# Beyond this number, ranges are merged with their neighbour to bound the memory.
_MAX_RANGES = 1000


class DamagedSpan(NamedTuple):
    """Unreadable messages [first, end)."""

    first: int
    end: int
    reason: str

    def __str__(self) -> str:
        numbers = f"messages {self.first} to {self.end - 1}"
        if self.end == self.first + 1:
            numbers = f"message {self.first}"
        return f"{numbers}: {self.reason}"


class KnownDamage:
    def __init__(
        self,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        gaps: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`gaps` are the sorted numbers [first, end) that are known to have no messages."""
        self._name = name
        self._gaps = gaps
        self._clock = clock
        self._lock = threading.Lock()
        # Disjoint and sorted.
        self._ranges: list[DamagedSpan] = []
        self._count = 0
        self._lines = 0
        self._unlogged = 0
        self._minute_ends = 0.0

    @property
    def count(self) -> int:
        """The number of damaged messages."""
        return self._count

    def ranges(self) -> list[DamagedSpan]:
        return list(self._ranges)

    def add(self, first: int, end: int, reason: str, *, is_logged: bool = False) -> None:
        """Adds messages [first, end), except known ones."""
        with self._lock:
            for part_first, part_end in self._outside_gaps(first, end):
                for start, stop in self._find_new(part_first, part_end):
                    self._insert(DamagedSpan(start, stop, reason))
                    if not is_logged:
                        self._log(DamagedSpan(start, stop, reason))

    def forget_below(self, oldest: int) -> None:
        """Removes messages below `oldest`, which were dropped."""
        with self._lock:
            while self._ranges and self._ranges[0].first < oldest:
                found = self._ranges.pop(0)
                self._count -= found.end - found.first
                if found.end > oldest:
                    self._insert(found._replace(first=oldest))

    def _outside_gaps(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of [first, end) that had messages."""
        place = bisect_right(self._gaps, first, key=itemgetter(1))
        for gap_first, gap_end in self._gaps[place:]:
            if gap_first >= end:
                break
            if first < gap_first:
                yield first, gap_first
            first = gap_end
        if first < end:
            yield first, end

    def _find_new(self, first: int, end: int) -> list[tuple[int, int]]:
        """The parts of [first, end) that are not known."""
        parts = []
        place = bisect_right(self._ranges, first, key=attrgetter("end"))
        for known in self._ranges[place:]:
            if known.first >= end:
                break
            if first < known.first:
                parts.append((first, known.first))
            first = known.end
        if first < end:
            parts.append((first, end))
        return parts

    def _insert(self, found: DamagedSpan) -> None:
        ranges = self._ranges
        self._count += found.end - found.first
        place = bisect_right(ranges, found.first, key=attrgetter("first"))
        is_full = len(ranges) >= _MAX_RANGES
        before = ranges[place - 1] if place else None
        if before is not None and before.end == found.first and before.reason == found.reason:
            ranges[place - 1] = before._replace(end=found.end)
        elif before is not None and is_full:
            self._count += found.first - before.end
            ranges[place - 1] = before._replace(end=found.end)
        else:
            ranges.insert(place, found)

    def _log(self, found: DamagedSpan) -> None:
        now = self._clock()
        if now >= self._minute_ends:
            if self._unlogged:
                logger.error(
                    "stream %r: %d more damaged ranges were found", self._name, self._unlogged
                )
            self._lines = self._unlogged = 0
            self._minute_ends = now + _MINUTE_SECONDS
        self._lines += 1
        if self._lines > _MAX_LINES:
            self._unlogged += 1
            return
        logger.error("stream %r: damaged %s", self._name, found)
