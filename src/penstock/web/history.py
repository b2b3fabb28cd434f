"""The counts of the last five minutes, one sample a second, for plots.

Counts are stored in one flat array per stream. Rates are computed from them on request.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

STEP_MILLIS = 1000
_SLOTS = 301
# Each stream takes 17 kB. With more streams, the newest have no history.
_MAX_STREAMS = 1000
# A rate is the mean over these steps. A single step varies too much to be readable.
_RATE_STEPS = 5


class Counts(NamedTuple):
    """The counts of one stream, or of all streams."""

    messages_appended: int = 0
    bytes_appended: int = 0
    messages_read: int = 0
    bytes_read: int = 0
    messages_exported: int = 0
    bytes_exported: int = 0
    # Not a count: the messages that are not exported at the time of the sample.
    messages_behind: int = 0


_WIDTH = len(Counts._fields)
_BEHIND = Counts._fields.index("messages_behind")
_ABSENT = -1

Rates = dict[str, float]
# The name of a stream, and the identifier of one of its exports.
ExportKey = tuple[str, str]
_NO_RATES: Rates = dict.fromkeys(Counts._fields[:_BEHIND], 0.0)


class Points(NamedTuple):
    """The points of a plot. A value is None where there is no sample."""

    times: list[int]
    # By the names of `Counts`: rates per second, except for messages_behind.
    series: dict[str, list[float | None]]


class CountRing:
    """A ring buffer of counts."""

    def __init__(self) -> None:
        self._cells = array("q", [_ABSENT]) * (_SLOTS * _WIDTH)

    def put(self, slot: int, counts: Counts | None) -> None:
        start = slot * _WIDTH
        self._cells[start : start + _WIDTH] = array("q", counts or (_ABSENT,) * _WIDTH)

    def get(self, slot: int) -> Sequence[int] | None:
        start = slot * _WIDTH
        cells = self._cells[start : start + _WIDTH]
        return None if cells[0] == _ABSENT else cells


class ExportRates:
    """The rates of single exports. Used in the event loop only."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, dict[ExportKey, int]]] = deque(maxlen=_RATE_STEPS + 1)

    def add(self, time: int, exported: dict[ExportKey, int]) -> None:
        """Adds the messages that each export has exported so far."""
        self._samples.append((time, exported))

    def rate(self, stream: str, identifier: str) -> float:
        """Returns messages per second, over the last seconds."""
        key = stream, identifier
        known = [(time, counts[key]) for time, counts in self._samples if key in counts]
        if len(known) < 2:
            return 0.0
        (first, before), (last, after) = known[0], known[-1]
        return max(after - before, 0) / _seconds_between(first, last)


class History:
    """The counts of the broker and of its streams. Used in the event loop only."""

    def __init__(self) -> None:
        self._times = array("q", [0]) * _SLOTS
        self._samples_added = 0
        self._totals = CountRing()
        self._streams: dict[str, CountRing] = {}
        # Existing streams without counts, because `_streams` was full.
        self._untracked: set[str] = set()
        self.exports = ExportRates()

    def add(self, time: int, totals: Counts, streams: Iterable[tuple[str, Counts]]) -> None:
        slot = self._samples_added % _SLOTS
        self._samples_added += 1
        self._times[slot] = time
        self._totals.put(slot, totals)
        seen = set()
        for name, counts in streams:
            seen.add(name)
            ring = self._streams.get(name)
            if ring is None:
                if len(self._streams) >= _MAX_STREAMS:
                    self._untracked.add(name)
                    continue
                ring = self._streams[name] = CountRing()
                if self._samples_added > 1 and name not in self._untracked:
                    # The stream was created, empty, after the previous sample.
                    ring.put((slot - 1) % _SLOTS, Counts())
            ring.put(slot, counts)
        # The other streams were deleted.
        for name in self._streams.keys() - seen:
            del self._streams[name]
        self._untracked &= seen

    def rates(self, stream: str | None = None) -> Rates:
        """Returns rates over the last seconds, by the names of `Counts`."""
        ring = self._totals if stream is None else self._streams.get(stream)
        if ring is not None:
            last = self._samples_added - 1
            for first in range(max(last - _RATE_STEPS, 0), last):
                before, after = ring.get(first % _SLOTS), ring.get(last % _SLOTS)
                if before is not None and after is not None:
                    times = self._times[first % _SLOTS], self._times[last % _SLOTS]
                    return _rates(before, after, _seconds_between(*times))
        return dict(_NO_RATES)

    def points(self, stream: str | None = None, since: int = 0) -> Points | None:
        """Returns the points after a time; None for an unknown stream."""
        ring = self._totals if stream is None else self._streams.get(stream)
        if ring is None:
            return None
        times: list[int] = []
        series: dict[str, list[float | None]] = {name: [] for name in Counts._fields}
        for number in range(max(self._samples_added - _SLOTS, 0) + 1, self._samples_added):
            before, slot = (number - 1) % _SLOTS, number % _SLOTS
            if self._times[slot] <= since:
                continue
            times.append(self._times[slot])
            step = _seconds_between(self._times[before], self._times[slot])
            values = _point(ring.get(before), ring.get(slot), step)
            for name, value in zip(Counts._fields, values, strict=True):
                series[name].append(value)
        return Points(times, series)


def _seconds_between(first: int, last: int) -> float:
    # If the clock was set back, the real duration is unknown: assume one step.
    return (last - first if last > first else STEP_MILLIS) / 1000


def _rates(before: Sequence[int], after: Sequence[int], seconds: float) -> Rates:
    return {
        name: max(after[place] - before[place], 0) / seconds for place, name in enumerate(_NO_RATES)
    }


def _point(
    before: Sequence[int] | None, after: Sequence[int] | None, seconds: float
) -> Sequence[float | None]:
    if before is None or after is None:
        return (None,) * _WIDTH
    # A count that decreased was reset.
    rates = [round(max(new - old, 0) / seconds, 2) for old, new in zip(before, after, strict=True)]
    rates[_BEHIND] = after[_BEHIND]
    return rates
