"""The bytes that exports may send, shared by priority. A smaller priority is more urgent.

A token bucket for all exports of a broker. Messages are charged when they are leased, and corrected
by the bytes that were sent. A part of a file is larger than the bucket: its task reserves it.
Reservations are granted when the bucket has the minimum, the most urgent first. That leaves a debt.
Less urgent work waits until the debt is paid. Equally urgent and more urgent work gets half of the
income meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

# The size of the bucket. With less than the minimum in it, nothing is started.
_BURST_SECONDS = 1.0
_MIN_SECONDS = 0.2
_MIN_TIMER_SECONDS = 0.01


class Timer(Protocol):
    def cancel(self) -> None: ...


@dataclass(eq=False)
class _Reservation:
    priority: int
    size: int
    is_held: Callable[[], bool]
    answer: Callable[[bool], None]
    timeout: Timer | None = None


class Bandwidth:
    """The bandwidth of one broker. Called from the event loop only."""

    def __init__(
        self,
        kilobits_per_second: int | None,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Timer],
    ) -> None:
        """Without a limit nothing has to wait."""
        self._clock = clock
        self._call_later = call_later
        # Called when reservations end: other work may be due.
        self.on_change: Callable[[], object] = lambda: None
        self._rate = kilobits_per_second * 125.0 if kilobits_per_second else math.inf
        self._capacity = self._rate * _BURST_SECONDS
        self._minimum = self._rate * _MIN_SECONDS
        self._left = self._capacity
        self._filled_at = clock()
        # Bytes by priority that files have sent in advance.
        self._debts: dict[int, float] = {}
        # Pending reservations, the most urgent first, and the timer for the next grant.
        self._pending: list[_Reservation] = []
        self._timer: Timer | None = None

    @property
    def is_limited(self) -> bool:
        return self._rate != math.inf

    # Messages

    def message_room(self, priority: int) -> float:
        """The bytes of messages that may be sent now; 0 if they have to wait."""
        return 0.0 if self._waits_for_files(priority) else self.room(priority)

    def seconds_until_message_room(self, priority: int) -> float:
        """The seconds until messages may be sent; inf if a reservation has to be granted first."""
        return math.inf if self._waits_for_files(priority) else self.seconds_until_room(priority)

    def _waits_for_files(self, priority: int) -> bool:
        """Whether an equally or more urgent file gets the next bandwidth."""
        if not self._pending:
            return False
        reserved = self._pending[0].priority
        # A debt shows that a file had its turn: equally urgent messages get their half meanwhile.
        return reserved < priority or (reserved == priority and not self.has_debt(reserved))

    def charge(self, priority: int, size: float) -> None:
        """Charges bytes of messages; a negative size refunds bytes that were not sent."""
        if self.is_limited:
            self._fill()
            if size > 0:
                self._pay_more_urgent(priority)
            self._left = min(self._left - size, self._capacity)

    # Files

    def reserve(
        self,
        priority: int,
        size: int,
        timeout_seconds: float,
        is_held: Callable[[], bool],
        answer: Callable[[bool], None],
    ) -> Callable[[], None] | None:
        """Calls `answer` with True when the bytes may be sent, with False after the timeout.

        Nothing is charged if the lease is no longer held then. Returns a function that cancels the
        reservation, or None if it is answered already.
        """
        reservation = _Reservation(priority, size, is_held, answer)
        self._pending.append(reservation)
        # `sort` is stable: equal priorities are granted in their order.
        self._pending.sort(key=lambda each: each.priority)
        self._grant_pending()
        if reservation not in self._pending:
            return None

        def expire() -> None:
            self._cancel(reservation)
            answer(False)

        reservation.timeout = self._call_later(timeout_seconds, expire)
        return lambda: self._cancel(reservation)

    def _cancel(self, reservation: _Reservation) -> None:
        if reservation in self._pending:
            assert reservation.timeout is not None
            reservation.timeout.cancel()
            self._pending.remove(reservation)
            self._grant_pending()
            self.on_change()

    def _grant_pending(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        answered = []
        while self._pending:
            first = self._pending[0]
            if first.is_held() and not self.grant(first.priority, first.size):
                seconds = max(self.seconds_until_grant(first.priority), _MIN_TIMER_SECONDS)
                self._timer = self._call_later(seconds, self._grant_pending)
                break
            answered.append(self._pending.pop(0))
        for reservation in answered:
            if reservation.timeout is not None:
                reservation.timeout.cancel()
            reservation.answer(True)
        if answered:
            self.on_change()

    def grant(self, priority: int, size: int) -> bool:
        """Whether a part of a file may be sent now. It is charged then."""
        if not self.is_limited:
            return True
        if not self.room(priority) or priority in self._debts:
            return False
        self._pay_more_urgent(priority)
        self._left -= size
        if self._left < 0:
            self._debts[priority] = -self._left
            self._left = 0.0
        return True

    def seconds_until_grant(self, priority: int) -> float:
        """The minimum time that a part of a file has to wait."""
        owed = sum(debt for debtor, debt in self._debts.items() if debtor <= priority)
        return max(owed / self._rate, self.seconds_until_room(priority))

    def has_debt(self, priority: int) -> bool:
        """Whether a file of this priority has sent bytes in advance."""
        if self._debts:
            self._fill()
        return priority in self._debts

    # The bucket

    def room(self, priority: int) -> float:
        """The bytes that work of this priority may send now; 0 if it has to wait."""
        if not self.is_limited:
            return math.inf
        self._fill()
        left = self._left - self._owed(priority)
        return left if left >= self._minimum else 0.0

    def seconds_until_room(self, priority: int) -> float:
        """The seconds that work of this priority has to wait if nothing else is sent meanwhile."""
        if self.room(priority):
            return 0.0
        owed = self._owed(priority)
        others = sum(self._debts.values()) - owed
        missing = max(self._minimum - self._left, 0.0)
        return (max(owed + self._minimum - self._left, 0.0) + min(missing, others)) / self._rate

    def _owed(self, priority: int) -> float:
        """The debts of more urgent files, which are paid first."""
        return sum(debt for debtor, debt in self._debts.items() if debtor < priority)

    def _fill(self) -> None:
        now = self._clock()
        income = (now - self._filled_at) * self._rate
        self._filled_at = now
        kept = income / 2
        to_debts = self._pay_all(income - kept)
        left = self._left + kept + to_debts
        self._left = min(left, self._capacity)
        self._pay_all(left - self._left)

    def _pay_more_urgent(self, priority: int) -> None:
        for debtor in [each for each in sorted(self._debts) if each < priority]:
            self._left = self._pay(debtor, self._left)

    def _pay_all(self, size: float) -> float:
        for debtor in sorted(self._debts):
            size = self._pay(debtor, size)
        return size

    def _pay(self, debtor: int, size: float) -> float:
        """Pays a debt with `size` bytes; returns the bytes that are left."""
        if size <= 0:
            return size
        debt = self._debts[debtor] - size
        if debt < 1:
            del self._debts[debtor]
            return max(-debt, 0.0)
        self._debts[debtor] = debt
        return 0.0
