"""Parts of files that wait for bandwidth, with timers that tests fire."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.broker.exports.bandwidth import Bandwidth
from penstock.broker.exports.reservations import Reservation, Reservations


class Timer:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call = call
        self.is_canceled = False

    def cancel(self) -> None:
        self.is_canceled = True


class Bench:
    """1000 bytes per second."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.timers: list[Timer] = []
        self.granted: list[str] = []
        # Requests whose leases have ended.
        self.lost: set[str] = set()
        self.changes = 0
        self.bandwidth = Bandwidth(8, lambda: self.seconds)
        self.reservations = Reservations(self.bandwidth, self._call_later, self._note_change)

    def _call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(self.seconds + seconds, call)
        self.timers.append(timer)
        return timer

    def _note_change(self) -> None:
        self.changes += 1

    def request(self, name: str, priority: int = 5, size: int = 100) -> Reservation:
        return self.reservations.request(
            priority, size, lambda: self.granted.append(name), lambda: name not in self.lost
        )

    @property
    def timer(self) -> Timer | None:
        """The one that is to fire: there is never more than one."""
        active = [each for each in self.timers if not each.is_canceled and each.at >= self.seconds]
        assert len(active) <= 1
        return active[0] if active else None

    def run(self, until: float) -> None:
        while (timer := self.timer) is not None and timer.at <= until:
            self.seconds = timer.at
            timer.cancel()
            timer.call()
        self.seconds = until


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_bandwidth_that_is_there_is_granted_at_once(bench: Bench) -> None:
    reservation = bench.request("a")
    assert bench.granted == ["a"]
    assert not bench.reservations.has(reservation)
    assert (bench.timer, bench.reservations.min_priority, bench.changes) == (None, None, 1)


def test_without_a_limit_everything_is_granted_at_once() -> None:
    granted: list[int] = []
    bandwidth = Bandwidth(None, lambda: 0.0)
    reservations = Reservations(bandwidth, lambda _, call: Timer(0, call), lambda: None)
    for size in (1, 10**12):
        reservations.request(5, size, lambda: granted.append(1), lambda: True)
    assert granted == [1, 1]


def test_request_waits_until_there_is_bandwidth(bench: Bench) -> None:
    bench.bandwidth.charge(1000)
    reservation = bench.request("a")
    assert bench.reservations.has(reservation)
    assert bench.reservations.min_priority == 5
    bench.run(until=0.19)
    assert bench.granted == []
    bench.run(until=0.21)
    assert bench.granted == ["a"]
    assert (bench.timer, bench.changes) == (None, 1)


def test_most_urgent_request_comes_first_and_equals_in_their_order(bench: Bench) -> None:
    bench.bandwidth.charge(1000)
    for name, priority in (("a", 5), ("b", 11), ("c", 5), ("d", 1)):
        bench.request(name, priority)
    assert bench.reservations.min_priority == 1
    bench.run(until=10)
    assert bench.granted == ["d", "a", "c", "b"]


def test_large_parts_are_granted_one_after_the_other(bench: Bench) -> None:
    for name in "abc":
        bench.request(name, size=10_000)
    assert bench.granted == ["a"]
    bench.run(until=8.9)
    assert bench.granted == ["a"]
    # The part has the bytes of ten seconds, and the bucket had those of one.
    bench.run(until=11)
    assert bench.granted == ["a", "b"]
    bench.run(until=25)
    assert bench.granted == ["a", "b", "c"]


def test_more_urgent_part_does_not_wait_for_the_debt_of_others(bench: Bench) -> None:
    bench.request("large", 5, size=100_000)
    bench.request("next", 5)
    bench.request("urgent", 1)
    bench.run(until=0.5)
    assert bench.granted == ["large", "urgent"]


def test_canceled_request_is_not_granted_and_others_follow(bench: Bench) -> None:
    bench.bandwidth.charge(1000)
    first = bench.request("a", 1)
    bench.request("b", 5)
    bench.reservations.cancel(first)
    assert bench.reservations.min_priority == 5
    # Less urgent messages need not wait for it any longer.
    assert bench.changes == 1
    bench.run(until=1)
    assert bench.granted == ["b"]
    bench.reservations.cancel(first)
    assert bench.changes == 2


def test_no_timer_is_left_when_the_last_request_is_canceled(bench: Bench) -> None:
    bench.bandwidth.charge(1000)
    bench.reservations.cancel(bench.request("a"))
    assert bench.timer is None


def test_request_whose_lease_has_ended_is_answered_without_a_charge(bench: Bench) -> None:
    bench.bandwidth.charge(1000)
    bench.request("lost", 1, size=10**9)
    bench.request("other", 5)
    bench.lost.add("lost")
    bench.run(until=0.3)
    assert bench.granted == ["lost", "other"]
    assert not bench.bandwidth.has_debt(1)
