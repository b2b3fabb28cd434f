"""Runs the parts of the demo in parallel."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from penstock.demo.camera import run_camera
from penstock.demo.farm import run_farm
from penstock.demo.outages import DEFAULT_SCHEDULE, OutageSchedule, run_outages
from penstock.sandbox.client import SandboxClient

logger = logging.getLogger("penstock.demo")

_STOP_TIMEOUT_SECONDS = 2.0


def _report(line: str) -> None:
    logger.info("%s", line)


def run_demo(
    root: Path,
    stopping: threading.Event,
    cloud: SandboxClient | None,
    *,
    report: Callable[[str], None] = _report,
    seconds_between_pictures: float = 20.0,
    outages: OutageSchedule = DEFAULT_SCHEDULE,
) -> None:
    """Runs until the event is set. Without a cloud there are only sensors, without exports."""
    jobs: list[Callable[[], None]] = [
        partial(run_farm, root, stopping, exports=cloud is not None),
    ]
    if cloud is not None:
        jobs += [
            partial(run_camera, root, stopping, cloud, report, seconds_between_pictures),
            partial(run_outages, cloud, stopping, report, outages),
        ]
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    stopping.wait()
    for thread in threads:
        # A thread that waits for a hanging cloud ends with the program.
        thread.join(_STOP_TIMEOUT_SECONDS)
