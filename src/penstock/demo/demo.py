"""The demo: all that happens at the wind farm, side by side."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from penstock.demo.camera import run_camera
from penstock.demo.farm import run_farm
from penstock.demo.outages import USUAL, Schedule, run_outages
from penstock.sandbox.client import SandboxClient

logger = logging.getLogger("penstock.demo")

_END_SECONDS = 2.0


def _tell(line: str) -> None:
    logger.info("%s", line)


def run_demo(
    root: Path,
    is_over: threading.Event,
    cloud: SandboxClient | None,
    *,
    tell: Callable[[str], None] = _tell,
    seconds_between_pictures: float = 20.0,
    outages: Schedule = USUAL,
) -> None:
    """Runs until it is over. Without a cloud there are sensors only, and nothing is exported."""
    works: list[Callable[[], None]] = [
        partial(run_farm, root, is_over, exports=cloud is not None),
    ]
    if cloud is not None:
        works += [
            partial(run_camera, root, is_over, cloud, tell, seconds_between_pictures),
            partial(run_outages, cloud, is_over, tell, outages),
        ]
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    is_over.wait()
    for thread in threads:
        # One that waits for a cloud that hangs ends with the program.
        thread.join(_END_SECONDS)
