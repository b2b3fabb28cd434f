"""What a destination is: it makes calls of messages and says what became of each of them.

A destination knows how to make a call and how to read its answer. Order, retries, time and what is
told to the broker are the same for all of them, and in `penstock.pipeline.delivery`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.model import ExportConfig


class Messages(NamedTuple):
    """Messages of one stream in their order, as columns: an object for each would cost more.

    They are what there is of a slice that begins with `first`. Numbers may be missing: messages
    that the stream no longer has, or that have arrived before.
    """

    stream: str
    first: int
    numbers: Sequence[int]
    # Milliseconds since 1970.
    ingest_times: Sequence[int]
    payloads: Sequence[bytes]

    def pick(self, places: Sequence[int]) -> Messages:
        """Those at these places."""
        return Messages(
            self.stream,
            self.first,
            [self.numbers[place] for place in places],
            [self.ingest_times[place] for place in places],
            [self.payloads[place] for place in places],
        )


class Call(NamedTuple):
    """What goes out at once: the messages at [start, stop), but for those that are skipped."""

    start: int
    stop: int
    # By sequence number: why a message can never be sent.
    skipped: Mapping[int, str]
    # What `send` sends, in whatever form it likes; None if nothing is left of the call.
    content: Any
    # About how many bytes that are on the wire.
    size: int


class Answer(NamedTuple):
    """What became of the messages of a call; those that are not named have arrived."""

    # By sequence number: why it did not arrive, and may when it is sent again.
    failed: Mapping[int, str] = {}
    # By sequence number: why it never will.
    refused: Mapping[int, str] = {}


class UnavailableError(Exception):
    """A call failed as a whole, and may succeed later. Users see the text."""

    def __init__(self, reason: str, *, retry_after: float | None = None) -> None:
        super().__init__(reason)
        # The number of seconds before a retry that the destination asked for.
        self.retry_after = retry_after


class RefusedError(Exception):
    """A call was refused as invalid, for one of its messages; sending less finds it."""


class DestinationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is set for all exports of a pipeline; see `penstock.broker.settings`."""

    kinesis_inter_call_delay_ms: int = 1000
    # "random", "stream-name", or "field:" and the name of a JSON field, with dots between levels.
    kinesis_partition_key: str = "random"
    # Whether records and calls may have 10 MiB; 1 MiB and 5 MiB otherwise.
    kinesis_large_records: bool = False
    # Where channels are, if not below the broker's root.
    channels: str = ""
    # Directories that files may be uploaded from; any if there are none.
    read_only_directories: tuple[str, ...] = ()
    s3_min_part_bytes: int = 5 * 1024 * 1024
    s3_tasks_at_once: int = 1
    s3_parts_at_once: int = 4
    s3_key_time_zone: str = "UTC"
    s3_delete_uploaded_files: bool = False


class Export(NamedTuple):
    """An export as its destination is told of it."""

    stream: str
    stream_id: str
    config: ExportConfig
    settings: DestinationSettings
    # The broker's directory; None where the pipeline runs on another machine.
    root: str | None
    # Seconds for one call.
    timeout: float
    # Whether the broker confirms that the messages are still leased to this delivery: otherwise
    # another task may have delivered them already. UnavailableError if the broker does not answer.
    holds_lease: Callable[[], bool] = lambda: True


class Destination(ABC):
    """Where one export goes. One thread at a time has it."""

    @abstractmethod
    def prepare(self, messages: Messages, start: int, limit: int) -> Call:
        """The next call: messages from the place `start` on, as many as fit one, `limit` at most.

        It takes one message at least, if only to skip it.
        """

    @abstractmethod
    def send(self, call: Call) -> Answer:
        """Makes the call, once. UnavailableError or RefusedError if it failed as a whole."""

    @property
    def pause(self) -> float:
        """Seconds to leave alone between two calls."""
        return 0.0

    @abstractmethod
    def close(self) -> None:
        """Ends connections that are of this destination alone. It is not used again."""
