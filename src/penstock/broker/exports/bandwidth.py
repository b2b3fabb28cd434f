"""The bytes that exports may send, shared by priority.

A token bucket for all exports of a broker. Messages are charged when they are leased, and corrected
by what was really sent. A part of a file is larger than the bucket: it is granted when the bucket
has enough for anything, and leaves a debt. Less urgent work waits until the debt is paid. Equally
urgent and more urgent work gets half of the income meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable

# The size of the bucket. With less than the minimum in it, nothing is begun.
_BURST_SECONDS = 1.0
_MIN_SECONDS = 0.2


class Bandwidth:
    """The bandwidth of one broker. A smaller priority is more urgent."""

    def __init__(self, kilobits_per_second: int | None, clock: Callable[[], float]) -> None:
        """Without a limit everything is allowed at once."""
        self._clock = clock
        self._rate = kilobits_per_second * 125.0 if kilobits_per_second else math.inf
        self._capacity = self._rate * _BURST_SECONDS
        self._minimum = self._rate * _MIN_SECONDS
        self._left = self._capacity
        self._filled_at = clock()
        # Bytes that files of each priority have sent in advance.
        self._debts: dict[int, float] = {}

    @property
    def is_limited(self) -> bool:
        return self._rate != math.inf

    def room(self, priority: int) -> float:
        """How many bytes work of this priority may send now; 0 if it has to wait."""
        if not self.is_limited:
            return math.inf
        self._fill()
        for debtor in sorted(self._debts):
            if debtor < priority:
                self._left = max(self._pay(debtor, self._left), min(self._left, 0.0))
        is_blocked = any(debtor < priority for debtor in self._debts)
        return self._left if self._left >= self._minimum and not is_blocked else 0.0

    def seconds_until_room(self, priority: int) -> float:
        """How long work of this priority has to wait if nothing else is sent meanwhile."""
        if self.room(priority):
            return 0.0
        owed = sum(debt for debtor, debt in self._debts.items() if debtor < priority)
        others = sum(self._debts.values()) - owed
        missing = max(self._minimum - self._left, 0.0)
        return (owed + missing + min(missing, others)) / self._rate

    def seconds_until_grant(self, priority: int) -> float:
        """How long a part of a file has to wait, at least."""
        owed = sum(debt for debtor, debt in self._debts.items() if debtor <= priority)
        return max(owed / self._rate, self.seconds_until_room(priority))

    def charge(self, size: float) -> None:
        """Messages of this size are sent; a negative size refunds bytes that were not."""
        if self.is_limited:
            self._fill()
            self._left = min(self._left - size, self._capacity)

    def has_debt(self, priority: int) -> bool:
        """Whether a file of this priority has sent bytes in advance."""
        if self._debts:
            self._fill()
        return priority in self._debts

    def grant(self, priority: int, size: int) -> bool:
        """Whether a part of a file may be sent now. It is charged then."""
        if not self.is_limited:
            return True
        if not self.room(priority) or priority in self._debts:
            return False
        self._left -= size
        if self._left < 0:
            self._debts[priority] = -self._left
            self._left = 0.0
        return True

    def _fill(self) -> None:
        now = self._clock()
        income = (now - self._filled_at) * self._rate
        self._filled_at = now
        kept = income / 2
        to_debts = income - kept
        for debtor in sorted(self._debts):
            to_debts = self._pay(debtor, to_debts)
        left = self._left + kept + to_debts
        self._left = min(left, self._capacity)
        surplus = left - self._left
        for debtor in sorted(self._debts):
            surplus = self._pay(debtor, surplus)

    def _pay(self, debtor: int, size: float) -> float:
        """Pays a debt with so many bytes; returns the bytes that are left."""
        if size <= 0:
            return size
        debt = self._debts[debtor] - size
        if debt < 1:
            del self._debts[debtor]
            return max(-debt, 0.0)
        self._debts[debtor] = debt
        return 0.0
