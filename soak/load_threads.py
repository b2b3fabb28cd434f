"""Threads that put load on a broker, and can be paused."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from penstock.errors import ClientException, StreamManagerException
from soak.processes import SoakError

_PAUSE_TIMEOUT_SECONDS = 90.0
_RETRY_SECONDS = 0.05
_POLL_SECONDS = 0.2


class LoadThread(threading.Thread, ABC):
    """Works unless it is paused. Reconnects when the connection is lost."""

    # The name in error messages.
    kind = ""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._may_run = threading.Event()
        self._is_paused = threading.Event()
        self._is_over = threading.Event()
        self.error: BaseException | None = None

    @abstractmethod
    def work(self) -> None:
        """Works until `may_work` is false. Raises OSError or ClientException without a broker."""

    @abstractmethod
    def disconnect(self) -> None:
        """Closes the connections that `work` has opened."""

    @property
    def may_work(self) -> bool:
        return self._may_run.is_set() and not self._is_over.is_set()

    @property
    def is_over(self) -> bool:
        return self._is_over.is_set()

    def resume(self) -> None:
        self._is_paused.clear()
        self._may_run.set()

    def request_pause(self) -> None:
        self._may_run.clear()

    def wait_until_paused(self) -> None:
        """Waits until no request is in flight, after `request_pause`."""
        if not self._is_paused.wait(_PAUSE_TIMEOUT_SECONDS) and self.is_alive():
            raise SoakError(f"a thread ({self.kind}) did not pause in time")
        if self.error is not None:
            raise SoakError(f"a thread ({self.kind}) failed: {self.error!r}")

    def end(self) -> None:
        self._is_over.set()
        self._may_run.set()

    def run(self) -> None:
        try:
            while not self.is_over:
                if not self._may_run.is_set():
                    self._is_paused.set()
                    self._may_run.wait(_POLL_SECONDS)
                    continue
                try:
                    self.work()
                except (OSError, ClientException):
                    self.disconnect()
                    time.sleep(_RETRY_SECONDS)
                except StreamManagerException:
                    # The connection is refused, or the stream is not created yet.
                    time.sleep(_RETRY_SECONDS)
        except BaseException as error:  # noqa: BLE001 - `wait_until_paused` raises it
            self.error = error
        finally:
            self.disconnect()
            self._is_paused.set()


def pause(threads: Sequence[LoadThread]) -> None:
    """Pauses all threads. The broker serves or has ended, so that no request hangs."""
    for thread in threads:
        thread.request_pause()
    for thread in threads:
        thread.wait_until_paused()


def end(threads: Sequence[LoadThread]) -> None:
    for thread in threads:
        thread.end()
    for thread in threads:
        if thread.is_alive():
            thread.join(_PAUSE_TIMEOUT_SECONDS)
