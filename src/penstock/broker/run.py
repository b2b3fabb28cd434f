"""Runs the broker as a process: handles signals and prints the readiness line."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Sequence
from typing import Protocol

from penstock.broker.logs import log_uncaught, set_up_logs
from penstock.broker.server import Broker
from penstock.settings import Settings, unknown_variables

logger = logging.getLogger(__name__)


class BrokerService(Protocol):
    """A service that runs in the broker's event loop."""

    async def start(self, broker: Broker) -> None:
        """Called when the broker listens; raises SettingError if the service cannot start."""

    async def stop(self) -> None:
        """Called before the broker stops."""

    @property
    def ready_message(self) -> str | None:
        """A line to print after the readiness line of the broker."""


def serve(settings: Settings, services: Sequence[BrokerService] = ()) -> None:
    """Runs until SIGTERM or SIGINT; raises StoreError or SettingError if it cannot start."""
    _fill_standard_streams()
    # New files, including those of SQLite, are accessible to their owner only.
    os.umask(0o077)
    set_up_logs(settings.log_level, settings.log_format)
    log_uncaught()
    for problem in unknown_variables(os.environ):
        logger.warning("%s", problem)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, services))


def _fill_standard_streams() -> None:
    """Opens closed standard streams; otherwise prints and logs would go to files of the store."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The new descriptor gets the lowest free number, which is `number`.
            os.open(os.devnull, os.O_RDWR)


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


async def _serve(settings: Settings, services: Sequence[BrokerService]) -> None:
    broker = Broker(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    await broker.start()
    started: list[BrokerService] = []
    try:
        for service in services:
            await service.start(broker)
            started.append(service)
    except BaseException:
        await _stop(broker, started)
        raise
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # Objects that exist now live until the end: the garbage collector can skip them.
    gc.collect()
    gc.freeze()
    # Acceptance tests of users wait for this line of the original's log.
    logger.info("Stream Manager reporting the state: RUNNING")
    # Standard output may be closed, or a file on a full disk.
    with contextlib.suppress(OSError):
        print(f"penstock ready {settings.host}:{broker.port}", flush=True)
        for service in services:
            if service.ready_message:
                print(service.ready_message, flush=True)
    await stop.wait()
    await _stop(broker, services)
    for number in (signal.SIGTERM, signal.SIGINT):
        # The broker has stopped: a late signal must not make it look like a crash.
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


async def _stop(broker: Broker, services: Sequence[BrokerService]) -> None:
    for service in reversed(services):
        try:
            await service.stop()
        except Exception:
            # The broker stops cleanly even if a service fails.
            logger.exception("cannot stop %s", type(service).__name__)
    await broker.stop()
