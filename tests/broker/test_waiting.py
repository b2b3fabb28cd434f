"""Waits for messages and for the disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.broker.waiting import GroupCommit, Waiter, Waiters, seconds_to_wait


class Reader:
    """Records how often, and with what result, its wait ended."""

    def __init__(self, needed_end: int) -> None:
        self.results: list[bool] = []
        self.waiter = Waiter(needed_end, self.results.append)


@pytest.fixture
def waiters() -> Waiters:
    return Waiters()


def add(waiters: Waiters, *needed_ends: int) -> list[Reader]:
    readers = [Reader(needed_end) for needed_end in needed_ends]
    for reader in readers:
        waiters.add(reader.waiter)
    return readers


def test_waiters_are_woken_when_their_number_is_reached(waiters: Waiters) -> None:
    five, three, four, other_three = add(waiters, 5, 3, 4, 3)

    waiters.wake(2)
    assert len(waiters) == 4
    waiters.wake(4)

    assert [reader.results for reader in (three, other_three, four)] == [[True]] * 3
    assert five.results == []
    assert len(waiters) == 1


def test_waiters_are_woken_in_order(waiters: Waiters) -> None:
    woken: list[int] = []

    def note(number: int) -> Callable[[bool], None]:
        return lambda _: woken.append(number)

    for number in range(10):
        waiters.add(Waiter(1, note(number)))
    waiters.wake(1)

    assert woken == list(range(10))


def test_waiters_are_woken_once(waiters: Waiters) -> None:
    (reader,) = add(waiters, 1)

    waiters.wake(1)
    waiters.wake(1)
    waiters.finish_all()
    reader.waiter.finish(False)

    assert reader.results == [True]
    assert reader.waiter.is_over


def test_canceled_waiter_is_not_woken(waiters: Waiters) -> None:
    (reader,) = add(waiters, 1)

    reader.waiter.cancel()
    waiters.wake(1)

    assert reader.results == []
    assert len(waiters) == 0


def test_finish_all_ends_all_waits(waiters: Waiters) -> None:
    readers = add(waiters, 1, 2, 3)

    waiters.finish_all()

    assert [reader.results for reader in readers] == [[False]] * 3
    assert len(waiters) == 0


def test_waiter_that_is_added_during_a_wake_waits_for_more(waiters: Waiters) -> None:
    again = Reader(7)
    waiters.add(Waiter(1, lambda _: waiters.add(again.waiter)))

    waiters.wake(5)

    assert again.results == []
    assert len(waiters) == 1
    waiters.wake(7)
    assert again.results == [True]


def test_canceled_waiters_are_removed(waiters: Waiters) -> None:
    (last,) = add(waiters, 1_000_000)

    for _ in range(10_000):
        (reader,) = add(waiters, 1_000_000)
        reader.waiter.cancel()

    assert len(waiters._heap) < 500
    waiters.wake(1_000_000)
    assert last.results == [True]


@pytest.mark.parametrize(
    ("millis", "seconds"), [(0, 0.0), (100, 0.098), (12_500, 12.25), (60_000, 59.75)]
)
def test_wait_ends_before_the_client_times_out(millis: int, seconds: float) -> None:
    assert seconds_to_wait(millis) == pytest.approx(seconds)


def test_deadline_ends_the_wait() -> None:
    async def wait() -> tuple[bool, float]:
        loop = asyncio.get_running_loop()
        over: asyncio.Future[bool] = loop.create_future()
        began = loop.time()
        Waiter(1, over.set_result).arm(loop, began + 0.02)
        return await over, loop.time() - began

    reached, seconds = asyncio.run(wait())

    assert not reached
    assert seconds >= 0.019


def test_woken_waiter_has_no_deadline() -> None:
    async def wake() -> list[bool]:
        loop = asyncio.get_running_loop()
        reader = Reader(1)
        reader.waiter.arm(loop, loop.time() + 0.005)
        reader.waiter.finish(True)
        later = asyncio.Event()
        loop.call_at(loop.time() + 0.02, later.set)
        await later.wait()
        return reader.results

    assert asyncio.run(wake()) == [True]


class SlowDisk:
    """Syncs that the test ends."""

    def __init__(self) -> None:
        self.syncs = 0
        self.may_end = threading.Semaphore(0)
        self.error: OSError | None = None

    def sync(self) -> None:
        self.syncs += 1
        self.may_end.acquire()
        if self.error is not None:
            raise self.error


def test_waits_during_a_flush_share_the_next_one() -> None:
    disk = SlowDisk()

    async def append() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(4) as executor:
            commit = GroupCommit(executor, disk.sync)
            done: list[asyncio.Future[BaseException | None]] = [
                loop.create_future() for _ in range(100)
            ]
            commit.wait(done[0].set_result)
            while disk.syncs == 0:
                await asyncio.sleep(0)
            for future in done[1:]:
                commit.wait(future.set_result)
            disk.may_end.release()
            await done[0]
            # Messages that arrived during the first sync may have been written after it began.
            assert not any(future.done() for future in done[1:])
            disk.may_end.release()
            assert await asyncio.gather(*done) == [None] * 100

    asyncio.run(append())

    assert disk.syncs == 2


def test_waits_in_one_turn_of_the_loop_share_a_flush() -> None:
    disk = SlowDisk()

    async def append() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as executor:
            commit = GroupCommit(executor, disk.sync)
            done: list[asyncio.Future[BaseException | None]] = [
                loop.create_future() for _ in range(100)
            ]
            for future in done:
                commit.wait(future.set_result)
            disk.may_end.release()
            await asyncio.gather(*done)

    asyncio.run(append())

    assert disk.syncs == 1


def test_waits_end_in_order_on_a_fast_disk() -> None:
    answered: list[int] = []

    async def append() -> None:
        last = asyncio.get_running_loop().create_future()
        for turn in range(200):
            for number in range(3):
                commit.wait(lambda _, n=3 * turn + number: answered.append(n))  # type: ignore[misc]
            await asyncio.sleep(0)
        commit.wait(last.set_result)
        await last

    with ThreadPoolExecutor(1) as executor:
        commit = GroupCommit(executor, lambda: None)
        asyncio.run(append())

    assert answered == list(range(600))


def test_long_flush_runs_in_a_thread() -> None:
    threads: list[str] = []

    async def append(times: int) -> None:
        for _ in range(times):
            done = asyncio.get_running_loop().create_future()
            commit.wait(done.set_result)
            await done

    with ThreadPoolExecutor(1, "thread") as executor:
        commit = GroupCommit(
            executor, lambda: threads.append(threading.current_thread().name), lambda: False
        )
        asyncio.run(append(50))

    assert all(name.startswith("thread") for name in threads)


def test_only_slow_flushes_use_a_thread() -> None:
    threads: list[str] = []
    seconds = 0.0
    clock = 0.0

    def sync() -> None:
        nonlocal clock
        threads.append(threading.current_thread().name)
        clock += seconds

    async def append(times: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(times):
            done: asyncio.Future[BaseException | None] = loop.create_future()
            commit.wait(done.set_result)
            await done

    with ThreadPoolExecutor(1, "thread") as executor:
        commit = GroupCommit(executor, sync, clock=lambda: clock)
        asyncio.run(append(50))
        assert threads[0].startswith("thread")
        assert threads[-1] == "MainThread"
        seconds = 0.05
        asyncio.run(append(3))
        assert threads[-1].startswith("thread")


def test_failed_flush_fails_only_its_own_waits() -> None:
    disk = SlowDisk()

    async def append(commit: GroupCommit, error: OSError | None) -> BaseException | None:
        disk.error = error
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        commit.wait(done.set_result)
        disk.may_end.release()
        return await done

    async def append_twice() -> list[BaseException | None]:
        with ThreadPoolExecutor(1) as executor:
            commit = GroupCommit(executor, disk.sync)
            return [await append(commit, OSError("no more disk")), await append(commit, None)]

    failed, worked = asyncio.run(append_twice())

    assert str(failed) == "no more disk"
    assert worked is None


def test_waiting_pipeline_is_not_counted_as_a_reader() -> None:
    waiters = Waiters()
    waiters.add(Waiter(5, lambda _: None))
    waiters.add(Waiter(5, lambda _: None, is_reader=False))
    assert len(waiters) == 2
    assert waiters.count_readers() == 1
    waiters.finish_all()
    assert waiters.count_readers() == 0
