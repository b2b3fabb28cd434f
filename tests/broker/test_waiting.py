"""Those who wait: for messages, and for the disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.broker.waiting import GroupCommit, Waiter, Waiters, seconds_to_wait


class Reader:
    """Notes how often, and with what, its waiting ended."""

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


def test_those_whose_number_is_reached_are_woken(waiters: Waiters) -> None:
    five, three, four, other_three = add(waiters, 5, 3, 4, 3)

    waiters.wake(2)
    assert len(waiters) == 4
    waiters.wake(4)

    assert [reader.results for reader in (three, other_three, four)] == [[True]] * 3
    assert five.results == []
    assert len(waiters) == 1


def test_the_one_who_came_first_is_woken_first(waiters: Waiters) -> None:
    woken: list[int] = []

    def note(number: int) -> Callable[[bool], None]:
        return lambda _: woken.append(number)

    for number in range(10):
        waiters.add(Waiter(1, note(number)))
    waiters.wake(1)

    assert woken == list(range(10))


def test_nobody_is_woken_twice(waiters: Waiters) -> None:
    (reader,) = add(waiters, 1)

    waiters.wake(1)
    waiters.wake(1)
    waiters.finish_all()
    reader.waiter.finish(False)

    assert reader.results == [True]
    assert reader.waiter.is_over


def test_one_who_left_is_not_woken(waiters: Waiters) -> None:
    (reader,) = add(waiters, 1)

    reader.waiter.cancel()
    waiters.wake(1)

    assert reader.results == []
    assert len(waiters) == 0


def test_all_are_told_that_it_is_over(waiters: Waiters) -> None:
    readers = add(waiters, 1, 2, 3)

    waiters.finish_all()

    assert [reader.results for reader in readers] == [[False]] * 3
    assert len(waiters) == 0


def test_one_who_waits_again_while_being_woken_waits_for_more(waiters: Waiters) -> None:
    again = Reader(7)
    waiters.add(Waiter(1, lambda _: waiters.add(again.waiter)))

    waiters.wake(5)

    assert again.results == []
    assert len(waiters) == 1
    waiters.wake(7)
    assert again.results == [True]


def test_those_who_left_do_not_pile_up(waiters: Waiters) -> None:
    (patient,) = add(waiters, 1_000_000)

    for _ in range(10_000):
        (reader,) = add(waiters, 1_000_000)
        reader.waiter.cancel()

    assert len(waiters._heap) < 500
    waiters.wake(1_000_000)
    assert patient.results == [True]


@pytest.mark.parametrize(
    ("millis", "seconds"), [(0, 0.0), (100, 0.098), (12_500, 12.25), (60_000, 59.75)]
)
def test_a_wait_ends_a_little_before_a_client_gives_up(millis: int, seconds: float) -> None:
    assert seconds_to_wait(millis) == pytest.approx(seconds)


def test_a_deadline_ends_the_wait() -> None:
    async def wait() -> tuple[bool, float]:
        loop = asyncio.get_running_loop()
        over: asyncio.Future[bool] = loop.create_future()
        began = loop.time()
        Waiter(1, over.set_result).arm(loop, began + 0.02)
        return await over, loop.time() - began

    reached, seconds = asyncio.run(wait())

    assert not reached
    assert seconds >= 0.019


def test_one_who_was_woken_has_no_deadline_left() -> None:
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
    """Syncs that end when they are told to."""

    def __init__(self) -> None:
        self.syncs = 0
        self.may_end = threading.Semaphore(0)
        self.error: OSError | None = None

    def sync(self) -> None:
        self.syncs += 1
        self.may_end.acquire()
        if self.error is not None:
            raise self.error


def test_all_who_come_while_a_sync_runs_share_the_next_one() -> None:
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
            # Those who came while the first sync ran may have been written after it began.
            assert not any(future.done() for future in done[1:])
            disk.may_end.release()
            assert await asyncio.gather(*done) == [None] * 100

    asyncio.run(append())

    assert disk.syncs == 2


def test_all_who_come_in_one_turn_of_the_loop_share_a_sync() -> None:
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


def test_those_who_came_first_are_answered_first_also_on_a_quick_disk() -> None:
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


def test_a_flush_that_is_not_short_is_left_to_a_thread() -> None:
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


def test_a_quick_disk_is_synced_without_a_thread_and_a_slow_one_with_one() -> None:
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


def test_a_sync_that_fails_is_told_to_those_who_waited_for_it_alone() -> None:
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


def test_a_pipeline_that_waits_is_not_counted_as_a_reader() -> None:
    waiters = Waiters()
    waiters.add(Waiter(5, lambda _: None))
    waiters.add(Waiter(5, lambda _: None, is_reader=False))
    assert len(waiters) == 2
    assert waiters.count_readers() == 1
    waiters.finish_all()
    assert waiters.count_readers() == 0
