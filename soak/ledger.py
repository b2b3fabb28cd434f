"""The ledger of a soak: sent messages and their responses, by stream.

Arrays hold sequence numbers and message ids, 16 bytes per message, so that a long run fits in
memory. Producers write from many threads.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable

from soak.checks import Expected
from soak.messages import MessageId

_COUNTER_BITS = 40
_COUNTER_MASK = (1 << _COUNTER_BITS) - 1


class StreamLedger:
    """Messages of a stream that were sent, acknowledged and refused, and its damage."""

    def __init__(self, name: str, drops: bool = False) -> None:
        self.name = name
        # Whether the stream may evict its oldest messages.
        self.drops = drops
        self._lock = threading.Lock()
        self._sources: list[str] = []
        self._sent: list[int] = []
        self._refused: set[MessageId] = set()
        self._numbers = array("q")
        self._ids = array("q")
        self.damaged: set[int] = set()

    @property
    def source_prefix(self) -> str:
        """The prefix of the names of its sources. It has no blanks."""
        return f"{self.name.replace(' ', '_')}/"

    def add_source(self) -> SourceLedger:
        """Adds a source, for one thread."""
        with self._lock:
            index = len(self._sources)
            self._sources.append(f"{self.source_prefix}{index}")
            self._sent.append(0)
        return SourceLedger(self, index, self._sources[index])

    def sent(self, source: int, count: int) -> int:
        """Records messages before they are sent; returns the counter of the first."""
        first = self._sent[source]
        self._sent[source] = first + count
        return first

    def answered(self, source: int, counter: int, number: int) -> None:
        with self._lock:
            self._numbers.append(number)
            self._ids.append(source << _COUNTER_BITS | counter)

    def refused(self, source: int, counter: int) -> None:
        with self._lock:
            self._refused.add(MessageId(self._sources[source], counter))

    @property
    def answers(self) -> int:
        return len(self._numbers)

    def numbers_since(self, answers: int) -> set[int]:
        """Returns the sequence numbers of all acknowledgements except the first `answers`."""
        with self._lock:
            return set(self._numbers[answers:])

    def forget(self, numbers: Iterable[int]) -> int:
        """Removes acknowledgements that a power cut may lose; returns how many were removed."""
        gone = set(numbers)
        with self._lock:
            kept = [place for place, number in enumerate(self._numbers) if number not in gone]
            forgotten = len(self._numbers) - len(kept)
            self._ids = array("q", (self._ids[place] for place in kept))
            self._numbers = array("q", (self._numbers[place] for place in kept))
        return forgotten

    def expected(self, first: int = 0) -> Expected:
        """Returns the expected contents of the stream from a sequence number."""
        with self._lock:
            return Expected(
                answered=[
                    (number, self._message(identity))
                    for number, identity in zip(self._numbers, self._ids, strict=True)
                    if number >= first
                ],
                sent=dict(zip(self._sources, self._sent, strict=True)),
                refused=frozenset(self._refused),
                damaged=frozenset(self.damaged),
                drops=self.drops,
            )

    def _message(self, identity: int) -> MessageId:
        return MessageId(self._sources[identity >> _COUNTER_BITS], identity & _COUNTER_MASK)


class SourceLedger:
    """The ledger of a source: a thread that appends to a stream."""

    def __init__(self, ledger: StreamLedger, index: int, name: str) -> None:
        self._ledger = ledger
        self._index = index
        self.name = name

    @property
    def stream(self) -> str:
        return self._ledger.name

    def send(self, count: int = 1) -> int:
        return self._ledger.sent(self._index, count)

    def answer(self, counter: int, number: int) -> None:
        self._ledger.answered(self._index, counter, number)

    def refuse(self, counter: int) -> None:
        self._ledger.refused(self._index, counter)


class Ledger:
    """All streams of an arena."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[str, StreamLedger] = {}
        # Acknowledgements of deleted streams.
        self._past_answers = 0

    def add(self, name: str, *, drops: bool = False) -> StreamLedger:
        with self._lock:
            assert name not in self._streams, name
            stream = self._streams[name] = StreamLedger(name, drops)
            return stream

    def remove(self, name: str) -> None:
        with self._lock:
            self._past_answers += self._streams.pop(name).answers

    def streams(self) -> list[StreamLedger]:
        with self._lock:
            return list(self._streams.values())

    @property
    def answers(self) -> int:
        with self._lock:
            return self._past_answers + sum(each.answers for each in self._streams.values())
