"""Export progress that the disk did not take: kept in memory, and stored when the disk works."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


class UnstoredProgress:
    """Changes of progress in the order in which they were made. Called from the event loop only.

    While there are any, exports are suspended: what they delivered next could not be stored
    either, and after a crash it would be delivered again.
    """

    def __init__(self, executor: Executor, on_change: Callable[[str], None]) -> None:
        """`on_change` is called with each new value of `error`."""
        self._executor = executor
        self._on_change = on_change
        # Each stores one change, or raises.
        self._stores: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        # Why the last attempt failed; empty if nothing is unstored.
        self.error = ""

    def add(self, store: Callable[[], None], error: BaseException | None = None) -> None:
        """A change that failed, or that follows one that failed."""
        self._stores.append(store)
        if not self.error:
            logger.error(
                "the progress of exports cannot be stored: %s; exports are suspended until it can",
                error,
            )
            self._set_error(str(error) or repr(error))
            self._retry_later()

    def _set_error(self, error: str) -> None:
        if error != self.error:
            self.error = error
            self._on_change(error)

    def _retry_later(self) -> None:
        if self._is_stopped:
            return
        self._timer = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        future = asyncio.get_running_loop().run_in_executor(self._executor, self._store_all)
        future.add_done_callback(self._retried)

    def _store_all(self) -> None:
        while self._stores:
            self._stores[0]()
            self._stores.popleft()

    def _retried(self, future: asyncio.Future[None]) -> None:
        error = future.exception()
        if error is None and not self._stores:
            logger.info("the progress of exports is stored: exports go on")
            self._set_error("")
            return
        if error is not None:
            self._set_error(str(error) or repr(error))
        self._retry_later()

    def stop_retrying(self) -> None:
        """Starts no other attempt; one that runs goes on."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def finish(self) -> None:
        """The broker stops: the last attempt, when no other thread makes one."""
        try:
            self._store_all()
        except (OSError, sqlite3.Error) as error:
            logger.error(
                "the progress of exports cannot be stored: %s; messages that were exported since "
                "the disk failed will be exported again",
                error,
            )
