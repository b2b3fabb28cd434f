"""Memory for large requests and large answers, over all connections.

Large requests take together no more than one of the largest size. A connection reserves a frame's
whole length before it reads on, and waits in line where there is no room, so that two
half-received frames never wait for each other.

Large answers share one budget, from the time they are built until the peer has taken them. A read
that has its minimum ends where the budget does. A read that cannot get its minimum drops what it
has and waits in line for all of it, so that two half-built answers never wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

# Below this a frame is not worth counting: connections are bounded in number.
_SMALL_BYTES = 1024 * 1024


class FrameMemory:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reserved: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, tuple[int, Callable[[], None]]] = {}

    def reserve(self, owner: Hashable, size: int, go_on: Callable[[], None]) -> bool:
        """Whether the owner may read on now; if not, `go_on` is called when it may."""
        if size <= _SMALL_BYTES or owner in self._reserved:
            return True
        if not self._waiting and self._has_room(size):
            self._reserved[owner] = size
            return True
        self._waiting[owner] = (size, go_on)
        return False

    def _has_room(self, size: int) -> bool:
        # Alone there is room for any: one that never got it would hold up all behind it.
        return not self._reserved or sum(self._reserved.values()) + size <= self._limit

    def admits(self, owner: Hashable) -> bool:
        return owner not in self._waiting

    def release(self, owner: Hashable) -> None:
        """The owner's frame is whole, or its connection gone."""
        self._waiting.pop(owner, None)
        self._reserved.pop(owner, None)
        while self._waiting:
            next_owner, (size, go_on) = next(iter(self._waiting.items()))
            if not self._has_room(size):
                return
            del self._waiting[next_owner]
            self._reserved[next_owner] = size
            go_on()


# An answer of this size is never refused, so that small reads go on while large ones wait.
SMALL_ANSWER_BYTES = 64 * 1024
# With less free memory than this, or than a quarter of all, answers are built in small steps.
_SHORTAGE_BYTES = 4 * 1024 * 1024


class RoomNeededError(Exception):
    """An answer of this size does not fit now: its request waits for room, and then starts over."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class AnswerMemory:
    """The budget for answers that are built or unsent."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shortage = min(_SHORTAGE_BYTES, limit // 4)
        self.used = 0
        # Answers above the small size; a single one is always admitted.
        self._rooms = 0
        self._waiting: dict[AnswerRoom, tuple[int, Callable[[AnswerRoom], None]]] = {}
        self.is_short = False

    def open(self) -> AnswerRoom:
        """The room of an answer that is small so far."""
        return AnswerRoom(self)

    def wait(self, size: int, granted: Callable[[AnswerRoom], None]) -> AnswerRoom:
        """A room of this size, in line behind all others; to release it ends the wait."""
        room = AnswerRoom(self)
        self._waiting[room] = (size, granted)
        self._wake()
        return room

    def hold(self, size: int) -> None:
        """Count unsent bytes that have no room; a negative size gives them back."""
        self.used += size
        self._wake()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def resize(self, room: AnswerRoom, size: int) -> None:
        self._rooms += bool(size) - bool(room.size)
        self.used += size - room.size
        room.size = size
        self._wake()

    def fits(self, room: AnswerRoom, size: int, *, is_needed: bool) -> bool:
        if self._waiting:
            return False
        others = self.used - room.size
        if is_needed:
            # A single oversized answer is always admitted, otherwise it would never be sent.
            return others + size <= self._limit or self._rooms == bool(room.size)
        # One answer leaves half of the free memory to the others.
        return 2 * size <= self._limit - others

    def cancel_wait(self, room: AnswerRoom) -> None:
        """Ends the wait of a room, if it waits; there may be room for the one behind it."""
        if self._waiting.pop(room, None) is not None:
            self._wake()

    def _wake(self) -> None:
        while self._waiting:
            room, (size, granted) = next(iter(self._waiting.items()))
            if self.used + size > self._limit and self._rooms:
                break
            del self._waiting[room]
            self._rooms += 1
            self.used += size
            room.size = size
            granted(room)
        self.is_short = bool(self._waiting) or self._limit - self.used < self._shortage


class AnswerRoom:
    """The room of one answer in the budget. The first few bytes are free."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory
        self.size = 0

    def grow(self, size: int, *, is_needed: bool) -> bool:
        if size <= max(self.size, SMALL_ANSWER_BYTES):
            return True
        if not self._memory.fits(self, size, is_needed=is_needed):
            return False
        self._memory.resize(self, size)
        return True

    def require(self, size: int) -> None:
        if not self.grow(size, is_needed=True):
            raise RoomNeededError(size)

    def limit_step(self, size: int) -> int:
        """How much to read for an answer that may have less than this size."""
        return size if self.allows_step(size) else min(size, SMALL_ANSWER_BYTES // 2)

    def allows_step(self, size: int) -> bool:
        """Whether there is likely to be room when the answer has so many bytes."""
        return not self._memory.is_short or size <= self.size

    def shrink(self, size: int) -> None:
        """The answer is complete: give back what it does not need."""
        if self.size:
            self._memory.resize(self, size if size > SMALL_ANSWER_BYTES else 0)

    def release(self) -> None:
        self._memory.cancel_wait(self)
        if self.size:
            self._memory.resize(self, 0)
