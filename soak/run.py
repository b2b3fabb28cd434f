"""Runs the arenas of a soak side by side until their time is over."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak import block_device, small_disk
from soak.broker_arena import DISK_BYTES, BrokerArena
from soak.plan import Extent
from soak.power_arena import PowerArena
from soak.processes import SoakError
from soak.report import Tally
from soak.simulated_power import SimulatedPowerArena

ARENAS = ("broker", "power")


@dataclass(frozen=True)
class Options:
    seconds: float
    # Instead of a time, so many rounds of each arena.
    rounds: int | None
    max_load_seconds: float
    seed: int
    arenas: tuple[str, ...]
    directory: Path
    # Power cuts on the simulated disk, also where ext4 could be mounted.
    simulate_power: bool = False
    keep: bool = False


def run_soak(options: Options) -> dict[str, Any]:
    """What was tried and what was found, as JSON has it."""
    tally = Tally()
    began = time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix="penstock-soak-", dir=options.directory))
    failures: list[str] = []
    # What the store logs in this process: simulated power cuts damage it all the time.
    log = logging.FileHandler(scratch / "soak.log")
    logging.getLogger("penstock").addHandler(log)
    try:
        threads = [
            threading.Thread(target=_guard, args=(name, arena, failures), name=name)
            for name, arena in _make_arenas(options, scratch, tally, began).items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        logging.getLogger("penstock").removeHandler(log)
        log.close()
        if options.keep or failures or not tally.is_clean:
            tally.note(f"logs and stores are in {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    return {
        "seed": options.seed,
        "seconds": round(time.monotonic() - began, 1),
        "isClean": tally.is_clean and not failures,
        **tally.to_json(),
        "failures": failures,
    }


def _make_arenas(
    options: Options, scratch: Path, tally: Tally, began: float
) -> dict[str, Callable[[], None]]:
    extent = Extent(began + options.seconds, options.rounds, options.max_load_seconds)
    can_mount = small_disk.can_mount(scratch)
    arenas: dict[str, Callable[[], None]] = {}
    if "broker" in options.arenas:
        arenas["broker"] = _broker_arena(options, scratch, tally, extent, can_mount)
    if "power" in options.arenas:
        reason = (
            "asked for" if options.simulate_power else block_device.is_possible(scratch / "try")
        )
        if reason:
            tally.note(f"power cuts are simulated: {reason}")
            arenas["power"] = SimulatedPowerArena(scratch, options.seed, tally, extent).run
        else:
            tally.note("power cuts: ext4 on a block device that loses what was not flushed")
            arenas["power"] = PowerArena(scratch, options.seed, tally, extent).run
    return arenas


def _broker_arena(
    options: Options, scratch: Path, tally: Tally, extent: Extent, can_mount: bool
) -> Callable[[], None]:
    def run() -> None:
        with contextlib.ExitStack() as stack:
            disk = None
            if can_mount:
                disk = stack.enter_context(small_disk.SmallDisk(scratch / "small", DISK_BYTES))
            else:
                tally.note("no full disks: this user may not mount a tmpfs")
            BrokerArena(scratch, options.seed, tally, extent, disk).run()

    return run


def _guard(name: str, arena: Callable[[], None], failures: list[str]) -> None:
    try:
        arena()
    except SoakError as error:
        failures.append(f"{name}: {error}")
    except Exception:  # noqa: BLE001 - a soak that breaks must not look clean
        failures.append(f"{name}: {traceback.format_exc()}")
