"""The interface of all destinations.

A destination makes calls and reads their answers. Order, retries, pauses and reports to the broker
are the same for all of them: see `penstock.pipeline.delivery`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import msgspec

from penstock.model import ExportConfig


class Messages(NamedTuple):
    """Messages of one stream in order, as columns: an object for each message would cost more.

    They belong to a slice that begins with `first`. Numbers may be missing: the stream has dropped
    the message, or it was delivered before.
    """

    stream: str
    first: int
    numbers: Sequence[int]
    # Milliseconds since 1970.
    ingest_times: Sequence[int]
    payloads: Sequence[bytes]

    def pick(self, places: Sequence[int]) -> Messages:
        """The messages at these places."""
        return Messages(
            self.stream,
            self.first,
            [self.numbers[place] for place in places],
            [self.ingest_times[place] for place in places],
            [self.payloads[place] for place in places],
        )


class Call(NamedTuple):
    """One call: the messages at the places [start, stop), without those that are skipped."""

    start: int
    stop: int
    # By sequence number: why a message can never be sent.
    skipped: Mapping[int, str] = {}
    # The messages that are sent. If there are none, the call is not made.
    numbers: Sequence[int] = ()
    # What `send` sends, in a form of its own.
    content: Any = None
    # The approximate number of bytes on the wire.
    size: int = 0


class Answer(NamedTuple):
    """The result of a call: messages that are not named have arrived."""

    # By sequence number: why a message failed that may arrive when it is retried.
    failed: Mapping[int, str] = {}
    # By sequence number: why a message can never arrive.
    refused: Mapping[int, str] = {}


class UnavailableError(Exception):
    """A call failed as a whole, and may succeed later. Users see the text."""

    def __init__(self, reason: str, *, retry_after: float | None = None) -> None:
        super().__init__(reason)
        # The number of seconds before a retry that the destination asked for.
        self.retry_after = retry_after


class RefusedError(Exception):
    """A call was refused because one of its messages is invalid; smaller calls find that one."""


def parse_retry_after(header: str | None, now: float) -> float | None:
    """The seconds to wait that a Retry-After header asks for, as a number or until a date."""
    if not header:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(parsedate_to_datetime(header).timestamp() - now, 0.0)
    except ValueError:
        return None


class DestinationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for all exports of a pipeline; see `penstock.broker.settings`."""

    kinesis_inter_call_delay_ms: int = 1000
    # "random", "stream-name", or "field:" and the name of a JSON field, with dots between levels.
    kinesis_partition_key: str = "random"
    # Whether records and calls may have 10 MiB; 1 MiB and 5 MiB otherwise.
    kinesis_large_records: bool = False
    # The directory of all channels, if it is not below the broker's root.
    channels: str = ""
    # Directories that files may be uploaded from; any if there are none.
    read_only_directories: tuple[str, ...] = ()
    s3_min_part_bytes: int = 5 * 1024 * 1024
    s3_tasks_at_once: int = 1
    s3_parts_at_once: int = 4
    s3_key_time_zone: str = "UTC"
    s3_delete_uploaded_files: bool = False


class Export(NamedTuple):
    """What a destination needs to know of an export."""

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
    """The destination of one export. One thread uses it at a time."""

    @abstractmethod
    def prepare(self, messages: Messages, start: int, limit: int) -> Call:
        """The next call: messages from the place `start` on, as many as fit, `limit` at most.

        It includes at least one message, even if it only skips it.
        """

    @abstractmethod
    def send(self, call: Call) -> Answer:
        """Makes the call, once. UnavailableError or RefusedError if it failed as a whole."""

    @property
    def pause(self) -> float:
        """The seconds to wait between two calls."""
        return 0.0

    def close(self) -> None:  # noqa: B027 - connections usually belong to the process
        """Releases resources of this destination alone. It is not used again."""
