"""Waits of reads for messages, and of appends and definition changes for the disk."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import count

from penstock.store.stored_stream import DefinitionChange

# A wait ends before the timeout of its request: an AWS client crashes on a later answer.
_EARLY_FRACTION = 0.02
_EARLY_SECONDS = 0.25

# A few times the cost of a switch to a thread and back, and too short for clients to notice.
_QUICK_SECONDS = 0.001


def seconds_to_wait(timeout_millis: int) -> float:
    """The time to wait for messages, for a client with this timeout."""
    timeout = timeout_millis / 1000
    return timeout - min(timeout * _EARLY_FRACTION, _EARLY_SECONDS)


class Waiter:
    """Waits until a stream has all sequence numbers below `needed_end`, or until a deadline.

    The event loop calls `done` once: with True if the stream has them.
    """

    __slots__ = ("_done", "_timer", "is_reader", "needed_end")

    def __init__(
        self, needed_end: int, done: Callable[[bool], None], *, is_reader: bool = True
    ) -> None:
        self.needed_end = needed_end
        # False for a pipeline that waits for work.
        self.is_reader = is_reader
        self._done: Callable[[bool], None] | None = done
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        return self._done is None

    def arm(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self._timer = loop.call_at(deadline, self.finish, False)

    def finish(self, reached: bool) -> None:
        done = self.cancel()
        if done is not None:
            done(reached)

    def cancel(self) -> Callable[[bool], None] | None:
        if self._timer is not None:
            self._timer.cancel()
        done, self._done = self._done, None
        return done


class Waiters:
    """The waiters of one stream, the lowest needed end first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Waiter]] = []
        self._order = count()
        self._compact_at = 64

    def __len__(self) -> int:
        return sum(not waiter.is_over for _, _, waiter in self._heap)

    def count_readers(self) -> int:
        return sum(waiter.is_reader and not waiter.is_over for _, _, waiter in self._heap)

    def add(self, waiter: Waiter) -> None:
        if len(self._heap) >= self._compact_at:
            # Finished waiters are removed by `wake`, which a stream without appends never calls.
            self._heap = [item for item in self._heap if not item[2].is_over]
            heapq.heapify(self._heap)
            self._compact_at = 2 * len(self._heap) + 64
        heapq.heappush(self._heap, (waiter.needed_end, next(self._order), waiter))

    def wake(self, end: int) -> None:
        """Finishes the waiters whose needed end is at most `end`."""
        while self._heap and self._heap[0][0] <= end:
            heapq.heappop(self._heap)[2].finish(True)

    def finish_all(self) -> None:
        heap, self._heap = self._heap, []
        for _, _, waiter in heap:
            waiter.finish(False)


class GroupCommit:
    """Runs one flush at a time. All waits that begin during a flush share the next one.

    A flush runs in a thread. On a fast disk, where the switch to a thread and back takes as long as
    the flush, the event loop flushes itself. It measures flushes, and uses threads again when
    flushes get slower.
    """

    def __init__(
        self,
        executor: Executor,
        flush: Callable[[], None],
        is_short: Callable[[], bool] = lambda: True,
        note_seconds: Callable[[float], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`is_short` returns whether the next flush is small and waits for no other one."""
        self._note_seconds = note_seconds
        self._clock = clock
        self._executor = executor
        self._flush = flush
        self._is_short = is_short
        self._waiting: list[Callable[[BaseException | None], None]] = []
        self._is_running = False
        # A moving average. It starts high, because the first flushes create files.
        self._seconds = 10 * _QUICK_SECONDS

    def wait(self, done: Callable[[BaseException | None], None]) -> None:
        """The event loop calls `done` when all earlier writes are on the disk."""
        self._waiting.append(done)
        if not self._is_running:
            self._is_running = True
            # At the end of this turn, so that other appends of the turn share the flush.
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._seconds < _QUICK_SECONDS and self._is_short():
            self._finish(waiting, self._timed_flush())
            return
        future = asyncio.get_running_loop().run_in_executor(self._executor, self._timed_flush)
        future.add_done_callback(lambda finished: self._finish(waiting, finished.result()))

    def _timed_flush(self) -> Exception | None:
        began = self._clock()
        try:
            self._flush()
        except Exception as error:  # noqa: BLE001 - passed to all waits
            return error
        finally:
            seconds = self._clock() - began
            self._seconds += 0.2 * (seconds - self._seconds)
            self._note_seconds(seconds)
        return None

    def _finish(
        self,
        waiting: list[Callable[[BaseException | None], None]],
        error: BaseException | None,
    ) -> None:
        for done in waiting:
            done(error)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._start)
        else:
            self._is_running = False


class DefinitionCommits:
    """Stores definition changes in a thread, one commit at a time.

    All changes that arrive during a commit share the next one.
    """

    def __init__(
        self,
        executor: Executor,
        store: Callable[[Sequence[DefinitionChange]], list[Exception | None]],
    ) -> None:
        """`store` returns the error of each change, or None."""
        self._executor = executor
        self._store = store
        self._waiting: list[tuple[DefinitionChange, asyncio.Future[None]]] = []
        self._is_running = False

    async def store(self, change: DefinitionChange) -> None:
        """Returns when the change is on the disk; raises the error if it cannot be stored."""
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[None] = loop.create_future()
        self._waiting.append((change, stored))
        if not self._is_running:
            self._is_running = True
            # At the end of this turn, so that other changes of the turn share the commit.
            loop.call_soon(self._start)
        await stored

    def _start(self) -> None:
        waiting, self._waiting = self._waiting, []
        changes = [change for change, _ in waiting]
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, self._store, changes)
        future.add_done_callback(
            lambda finished: self._finish([stored for _, stored in waiting], finished)
        )

    def _finish(
        self,
        waiting: list[asyncio.Future[None]],
        finished: asyncio.Future[list[Exception | None]],
    ) -> None:
        failure = finished.exception()
        errors = [failure] * len(waiting) if failure is not None else finished.result()
        for stored, error in zip(waiting, errors, strict=True):
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)
        self._is_running = bool(self._waiting)
        if self._is_running:
            asyncio.get_running_loop().call_soon(self._start)
