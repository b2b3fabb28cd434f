"""Processor time and memory of groups of processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import psutil

# Processes by group. They may start and end during a measurement.
Groups = Mapping[str, Iterable[psutil.Process]]

_SAMPLE_SECONDS = 1.0


def measure_shares(find_groups: Callable[[], Groups], seconds: float) -> dict[str, float]:
    """Measures the percentage of one core that each group uses, for some seconds."""
    before = _processor_seconds(find_groups())
    used = {name: dict(times) for name, times in before.items()}
    start = time.monotonic()
    while (left := start + seconds - time.monotonic()) > 0:
        time.sleep(min(left, _SAMPLE_SECONDS))
        # Keeps the last sample of a process that has ended.
        for name, times in _processor_seconds(find_groups()).items():
            used.setdefault(name, {}).update(times)
    passed = time.monotonic() - start
    return {
        name: 100 * (sum(times.values()) - sum(before.get(name, {}).values())) / passed
        for name, times in used.items()
    }


def _processor_seconds(groups: Groups) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for name, processes in groups.items():
        found[name] = {}
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                found[name][process.pid] = times.user + times.system
    return found


def memory_bytes(processes: Iterable[psutil.Process]) -> float:
    """Returns the proportional set size, which counts shared pages once."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += float(process.memory_full_info().pss)
    return total
