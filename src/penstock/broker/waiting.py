"""Reads that wait for messages, and appends and definition changes that wait for the disk."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import count

from penstock.store.stored_stream import DefinitionChange

# A client gives up after exactly the time it asked for, and an answer that comes later kills it:
# a wait ends a little before.
_EARLY_FRACTION = 0.02
_EARLY_SECONDS = 0.25

# A few times what it takes to hand over to a thread and back, and no time for anybody to notice.
_QUICK_SECONDS = 0.001


def seconds_to_wait(timeout_millis: int) -> float:
    """How long to wait for the sake of a client that itself waits so many milliseconds."""
    timeout = timeout_millis / 1000
    return timeout - min(timeout * _EARLY_FRACTION, _EARLY_SECONDS)


class Waiter:
    """Somebody who waits until a stream reaches a number, or until a deadline.

    `done` is called once, from the loop: with True when the stream got there.
    """

    __slots__ = ("_done", "_timer", "is_reader", "needed_end")

    def __init__(
        self, needed_end: int, done: Callable[[bool], None], *, is_reader: bool = True
    ) -> None:
        self.needed_end = needed_end
        # Not a pipeline, which waits for whatever is to be exported.
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
    """Those who wait for one stream, the one that needs least first."""

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
            # Those that are over go when they surface; a stream that stands still needs this.
            self._heap = [item for item in self._heap if not item[2].is_over]
            heapq.heapify(self._heap)
            self._compact_at = 2 * len(self._heap) + 64
        heapq.heappush(self._heap, (waiter.needed_end, next(self._order), waiter))

    def wake(self, end: int) -> None:
        """The stream has all numbers below `end`."""
        while self._heap and self._heap[0][0] <= end:
            heapq.heappop(self._heap)[2].finish(True)

    def finish_all(self) -> None:
        heap, self._heap = self._heap, []
        for _, _, waiter in heap:
            waiter.finish(False)


class GroupCommit:
    """One flush at a time; all who come while it runs share the next one.

    A flush runs in a thread. On a disk that is so quick that handing over to a thread and back
    takes as long as the flush itself, the loop does it: it measures how long flushes take, and
    goes back to threads as soon as they are not worth waiting for.
    """

    def __init__(
        self,
        executor: Executor,
        flush: Callable[[], None],
        is_short: Callable[[], bool] = lambda: True,
        note_seconds: Callable[[float], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`is_short` tells whether the next flush is a small one that waits for nobody."""
        self._note_seconds = note_seconds
        self._clock = clock
        self._executor = executor
        self._flush = flush
        self._is_short = is_short
        self._waiting: list[Callable[[BaseException | None], None]] = []
        self._is_running = False
        # A moving average; the first flushes, which make files, are not the loop's.
        self._seconds = 10 * _QUICK_SECONDS

    def wait(self, done: Callable[[BaseException | None], None]) -> None:
        """`done` is called from the loop when all that was written before is on the disk."""
        self._waiting.append(done)
        if not self._is_running:
            self._is_running = True
            # At the end of this turn of the loop: others who append in it come along.
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
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait are told
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
    """Stores definition changes in a thread: one commit at a time.

    All changes that arrive while a commit runs share the next one.
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
        """Returns when the change is on the disk; raises what kept it from being stored."""
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[None] = loop.create_future()
        self._waiting.append((change, stored))
        if not self._is_running:
            self._is_running = True
            # At the end of this turn of the loop: other changes of the same turn share the commit.
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
