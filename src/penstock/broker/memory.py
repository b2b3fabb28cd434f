"""Memory for large requests: together they take no more than one of the largest size.

A connection reserves a frame's whole length before it reads on, and waits in line where there is
no room, so that two half-received frames never wait for each other.
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
