"""The broker as a process: signals in, a readiness line out."""

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
    """Something that runs in the broker's loop as long as it does."""

    async def start(self, broker: Broker) -> None:
        """The broker listens; SettingError if this one cannot."""

    async def stop(self) -> None:
        """The broker is about to stop."""

    @property
    def ready_message(self) -> str | None:
        """A line for whoever started the broker, behind the one that it is ready."""


def serve(settings: Settings, services: Sequence[BrokerService] = ()) -> None:
    """Runs until SIGTERM or SIGINT; StoreError or SettingError if it cannot start."""
    _fill_standard_streams()
    # Whatever is created from here on, also by SQLite, is for its owner only.
    os.umask(0o077)
    set_up_logs(settings.log_level, settings.log_format)
    log_uncaught()
    for problem in unknown_variables(os.environ):
        logger.warning("%s", problem)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, services))


def _fill_standard_streams() -> None:
    """Where they were closed, files of the store would take their numbers, and be written to."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest number that is free: this one.
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
    # What lives now lives until the end: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    # Acceptance tests in the field wait for this line of the original's log.
    logger.info("Stream Manager reporting the state: RUNNING")
    # Nobody may be listening any more, or a disk may be full.
    with contextlib.suppress(OSError):
        print(f"penstock ready {settings.host}:{broker.port}", flush=True)
        for service in services:
            if service.ready_message:
                print(service.ready_message, flush=True)
    await stop.wait()
    await _stop(broker, services)
    for number in (signal.SIGTERM, signal.SIGINT):
        # It is as good as over: one more signal must not make a clean end look like a crash.
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


async def _stop(broker: Broker, services: Sequence[BrokerService]) -> None:
    for service in reversed(services):
        try:
            await service.stop()
        except Exception:
            # Whatever is wrong with it, the broker ends as it should.
            logger.exception("%s does not end as it should", type(service).__name__)
    await broker.stop()
