"""Buffers of the records that arrived at the sandbox."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

# The approximate memory of a record without its bytes.
_OVERHEAD_BYTES = 256
# Freed slots are removed in batches, because each removal moves all remaining records.
_MIN_FREED_SLOTS = 4096
_MAX_PAGE_BYTES = 16 * 1024 * 1024


class _Item(NamedTuple, Generic[T]):
    record: T
    size: int


class Page(NamedTuple):
    """Records `[first, next)` of a buffer that ends at `end`."""

    first: int
    next: int
    end: int
    records: list[Any]


class RecordBuffer(Generic[T]):
    """The records of one stream or channel, numbered from 0. A full buffer evicts the oldest ones.

    It is not thread-safe.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._items: list[_Item[T] | None] = []
        # The number of the record at index 0, and the first index that is not freed.
        self._base = 0
        self._start = 0
        self._size = 0

    @property
    def first(self) -> int:
        return self._base + self._start

    @property
    def end(self) -> int:
        return self._base + len(self._items)

    def add(self, record: T, size: int) -> int:
        """Adds a record and returns its number. The newest record stays even if it is too large."""
        self._items.append(_Item(record, size))
        self._size += size + _OVERHEAD_BYTES
        while self._size > self._limit_bytes and self._start < len(self._items) - 1:
            self._evict_oldest()
        return self.end - 1

    def _evict_oldest(self) -> None:
        oldest = self._items[self._start]
        assert oldest is not None
        self._items[self._start] = None
        self._size -= oldest.size + _OVERHEAD_BYTES
        self._start += 1
        if self._start >= _MIN_FREED_SLOTS and self._start * 2 >= len(self._items):
            del self._items[: self._start]
            self._base += self._start
            self._start = 0

    def read(self, number: int) -> Iterator[tuple[int, T, int]]:
        """Yields number, record and size, from this number or from the oldest record on."""
        for index in range(max(number - self._base, self._start), len(self._items)):
            item = self._items[index]
            assert item is not None
            yield self._base + index, item.record, item.size

    def page(self, number: int, limit: int) -> Page:
        """Returns at most `limit` records that fit into a page, and at least one."""
        first = min(max(number, self.first), self.end)
        records: list[T] = []
        size = 0
        for _, record, record_size in self.read(first):
            if len(records) == limit or (records and size + record_size > _MAX_PAGE_BYTES):
                break
            records.append(record)
            size += record_size
        return Page(first, first + len(records), self.end, records)


class RecordBuffers(Generic[T]):
    """A buffer for each name that has records. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._buffers: dict[str, RecordBuffer[T]] = {}
        self._lock = threading.Lock()

    def add(self, name: str, record: T, size: int) -> None:
        with self._lock:
            buffer = self._buffers.get(name)
            if buffer is None:
                buffer = self._buffers[name] = RecordBuffer(self._limit_bytes)
            buffer.add(record, size)

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._buffers)

    def page(self, name: str, number: int, limit: int) -> Page:
        with self._lock:
            buffer = self._buffers.get(name)
            return Page(0, 0, 0, []) if buffer is None else buffer.page(number, limit)

    def all(self, name: str) -> list[T]:
        with self._lock:
            buffer = self._buffers.get(name)
            return [] if buffer is None else [record for _, record, _ in buffer.read(0)]
