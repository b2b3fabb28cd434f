"""Memory for large requests and large answers of all connections.

All large requests together take at most the max size of one request. A connection reserves the
whole length of a frame before it reads on, or waits in a queue. So two half-received frames never
wait for each other.

Large answers share one budget, until the peer has read them. A read that has its minimum ends when
the budget is used up. A read without its minimum drops its messages and waits in a queue for the
whole size, so that two half-built answers never wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

# Smaller frames are not counted: the number of connections limits them.
_SMALL_BYTES = 1024 * 1024


class FrameMemory:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reserved: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, tuple[int, Callable[[], None]]] = {}

    def reserve(self, owner: Hashable, size: int, resume: Callable[[], None]) -> bool:
        """Reserves memory for a frame; if it is short, returns False and calls `resume` later."""
        if size <= _SMALL_BYTES or owner in self._reserved:
            return True
        if not self._waiting and self._has_room(size):
            self._reserved[owner] = size
            return True
        self._waiting[owner] = (size, resume)
        return False

    def _has_room(self, size: int) -> bool:
        # A single oversized frame is always admitted, otherwise the queue would deadlock.
        return not self._reserved or sum(self._reserved.values()) + size <= self._limit

    def admits(self, owner: Hashable) -> bool:
        return owner not in self._waiting

    def release(self, owner: Hashable) -> None:
        """Called when the owner's frame is complete, or its connection lost."""
        self._waiting.pop(owner, None)
        self._reserved.pop(owner, None)
        while self._waiting:
            next_owner, (size, resume) = next(iter(self._waiting.items()))
            if not self._has_room(size):
                return
            del self._waiting[next_owner]
            self._reserved[next_owner] = size
            resume()


# An answer up to this size is not counted, so that small reads continue while large ones wait.
SMALL_ANSWER_BYTES = 64 * 1024
# With less free memory than this, or than a quarter of the budget, answers grow in small steps.
_SHORTAGE_BYTES = 4 * 1024 * 1024


class RoomNeededError(Exception):
    """An answer of this size does not fit now: its request waits, then starts over."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class AnswerMemory:
    """The budget for unfinished and unsent answers."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shortage = min(_SHORTAGE_BYTES, limit // 4)
        self.used = 0
        # The number of answers above the small size; a single one is always admitted.
        self._rooms = 0
        self._waiting: dict[AnswerRoom, tuple[int, Callable[[AnswerRoom], None]]] = {}
        self.is_short = False

    def open(self) -> AnswerRoom:
        """A room for a new answer."""
        return AnswerRoom(self)

    def wait(self, size: int, granted: Callable[[AnswerRoom], None]) -> AnswerRoom:
        """Queues for a room of this size; releasing the room ends the wait."""
        room = AnswerRoom(self)
        self._waiting[room] = (size, granted)
        self._wake()
        return room

    def hold(self, size: int) -> None:
        """Counts unsent bytes that have no room; a negative size releases them."""
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
        # An optional part leaves half of the free memory to other answers.
        return 2 * size <= self._limit - others

    def cancel_wait(self, room: AnswerRoom) -> None:
        """Removes a room from the queue; the next one may fit."""
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
    """The share of one answer in the budget. Answers up to `SMALL_ANSWER_BYTES` are free."""

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
        """The number of bytes to read for an answer that may have less than this size."""
        return size if self.allows_step(size) else min(size, SMALL_ANSWER_BYTES // 2)

    def allows_step(self, size: int) -> bool:
        """Whether an answer of this size is likely to fit."""
        return not self._memory.is_short or size <= self.size

    def shrink(self, size: int) -> None:
        """Releases unused memory when the answer is complete."""
        if self.size:
            self._memory.resize(self, size if size > SMALL_ANSWER_BYTES else 0)

    def release(self) -> None:
        self._memory.cancel_wait(self)
        if self.size:
            self._memory.resize(self, 0)
