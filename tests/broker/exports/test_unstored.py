"""Progress that the disk did not take."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.broker.exports import unstored
from penstock.broker.exports.unstored import UnstoredProgress


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


class Changes:
    """Those that were stored, on a disk that fails a number of times."""

    def __init__(self, failures: int) -> None:
        self.stored: list[str] = []
        self._failures = failures

    def store(self, name: str) -> None:
        if self._failures:
            self._failures -= 1
            raise sqlite3.OperationalError(f"{self._failures} more")
        self.stored.append(name)


def test_changes_are_stored_in_their_order_once_the_disk_works(
    executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(unstored, "_RETRY_SECONDS", 0.001)
    changes = Changes(failures=3)

    async def run() -> None:
        ended = asyncio.Event()

        def note(error: str) -> None:
            errors.append(error)
            if not error:
                ended.set()

        progress = UnstoredProgress(executor, note)
        assert progress.error == ""
        progress.add(lambda: changes.store("first"), sqlite3.OperationalError("disk is full"))
        assert progress.error == "disk is full"
        progress.add(lambda: changes.store("second"))
        await ended.wait()
        assert progress.error == ""

    errors: list[str] = []
    asyncio.run(run())
    assert errors == ["disk is full", "2 more", "1 more", "0 more", ""]
    assert changes.stored == ["first", "second"]
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_changes_that_cannot_be_stored_at_the_end_are_logged(
    executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    changes = Changes(failures=1)

    async def run() -> None:
        progress = UnstoredProgress(executor, lambda _: None)
        progress.add(lambda: changes.store("first"), sqlite3.OperationalError("disk is full"))
        progress.stop_retrying()
        progress.finish()
        assert "will be exported again" in caplog.records[-1].message
        progress.finish()

    asyncio.run(run())
    assert changes.stored == ["first"]


def test_attempt_that_fails_after_the_stop_is_the_last(
    executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unstored, "_RETRY_SECONDS", 0.0)
    attempts = 0

    async def run() -> None:
        begun, may_fail = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def store() -> None:
            nonlocal attempts
            attempts += 1
            loop.call_soon_threadsafe(begun.set)
            may_fail.wait()
            raise sqlite3.OperationalError("disk is full")

        progress = UnstoredProgress(executor, lambda _: None)
        progress.add(store, sqlite3.OperationalError("disk is full"))
        await begun.wait()
        progress.stop_retrying()
        may_fail.set()
        for _ in range(3):
            # The attempt ends, and its callback runs.
            await loop.run_in_executor(executor, lambda: None)

    asyncio.run(run())
    assert attempts == 1
