"""Runs the arenas of a soak in parallel."""

from __future__ import annotations

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

from soak import block_device, broker_arena, small_disk, system_arena
from soak.broker_arena import BrokerArena
from soak.plan import SoakLimits
from soak.power_arena import PowerArena
from soak.processes import SoakError
from soak.report import Tally
from soak.simulated_power import SimulatedPowerArena
from soak.small_disk import SmallDisk
from soak.system_arena import SystemArena

ARENAS = ("broker", "power", "system")


@dataclass(frozen=True)
class SoakOptions:
    seconds: float
    # Rounds of each arena, instead of a duration.
    rounds: int | None
    max_load_seconds: float
    seed: int
    arenas: tuple[str, ...]
    directory: Path
    # Use the simulated disk, even if ext4 can be mounted.
    simulate_power: bool = False
    keep: bool = False


def run_soak(options: SoakOptions, is_stopped: threading.Event) -> dict[str, Any]:
    """Runs a soak; returns its results for JSON. `is_stopped` ends it after the current round."""
    tally = Tally()
    began = time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix="penstock-soak-", dir=options.directory))
    failures: list[str] = []
    limits = SoakLimits(
        began + options.seconds, options.rounds, options.max_load_seconds, is_stopped
    )
    # Simulated power cuts run the store in this process, which logs each damage.
    log = logging.FileHandler(scratch / "soak.log")
    logging.getLogger("penstock").addHandler(log)
    try:
        threads = [
            threading.Thread(target=_run_guarded, args=(name, arena, failures), name=name)
            for name, arena in _make_arenas(options, scratch, tally, limits).items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        logging.getLogger("penstock").removeHandler(log)
        log.close()
        if options.keep or failures or not tally.is_clean:
            tally.add_note(f"logs and stores are in {scratch}")
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
    options: SoakOptions, scratch: Path, tally: Tally, limits: SoakLimits
) -> dict[str, Callable[[], None]]:
    can_mount = small_disk.can_mount(scratch)
    if not can_mount:
        tally.add_note("full disks are omitted: this user may not mount a tmpfs")

    def run_broker(disk: SmallDisk | None) -> None:
        BrokerArena(scratch, options.seed, tally, limits, disk).run()

    def run_system(disk: SmallDisk | None) -> None:
        SystemArena(scratch, options.seed, tally, limits, disk).run()

    def on_disk(run: Callable[[SmallDisk | None], None], size: int) -> Callable[[], None]:
        def run_on_disk() -> None:
            if not can_mount:
                run(None)
                return
            with SmallDisk(scratch / run.__name__, size) as disk:
                try:
                    run(disk)
                except BaseException:
                    _copy_disk(disk)
                    raise
                if options.keep or not tally.is_clean:
                    _copy_disk(disk)

        return run_on_disk

    arenas: dict[str, Callable[[], None]] = {}
    if "broker" in options.arenas:
        arenas["broker"] = on_disk(run_broker, broker_arena.DISK_BYTES)
    if "power" in options.arenas:
        arenas["power"] = _power_arena(options, scratch, tally, limits)
    if "system" in options.arenas:
        arenas["system"] = on_disk(run_system, system_arena.DISK_BYTES)
    return arenas


def _copy_disk(disk: SmallDisk) -> None:
    """Copies the files of a disk before it is unmounted."""
    disk.free()
    kept = disk.directory.with_name(f"{disk.directory.name}-kept")
    shutil.copytree(disk.directory, kept, ignore_dangling_symlinks=True)


def _power_arena(
    options: SoakOptions, scratch: Path, tally: Tally, limits: SoakLimits
) -> Callable[[], None]:
    reason = (
        "--simulate-power"
        if options.simulate_power
        else block_device.find_obstacle(scratch / "try")
    )
    if reason:
        tally.add_note(f"power cuts are simulated: {reason}")
        return SimulatedPowerArena(scratch, options.seed, tally, limits).run
    tally.add_note("power cuts: ext4 on a block device that loses unflushed writes")
    return PowerArena(scratch, options.seed, tally, limits).run


def _run_guarded(name: str, arena: Callable[[], None], failures: list[str]) -> None:
    try:
        arena()
    except SoakError as error:
        failures.append(f"{name}: {error}")
    except Exception:  # noqa: BLE001 - any error makes the soak fail
        failures.append(f"{name}: {traceback.format_exc()}")
