"""The interface of all destinations.

A destination makes calls and reads the answers. Order, retries, pauses and reports to the broker
are common to all destinations: see `penstock.pipeline.delivery`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import msgspec

from penstock.model import ExportConfig

# Seconds. The broker's own maximum is lower.
MAX_RETRY_AFTER = 3600.0


class Messages(NamedTuple):
    """Messages of one stream in order, as columns: an object for each message would cost more.

    They belong to a slice that begins with `first`. Numbers may be missing: the message is lost, or
    has arrived in an earlier delivery.
    """

    stream: str
    first: int
    numbers: Sequence[int]
    # Milliseconds since 1970.
    ingest_times: Sequence[int]
    payloads: Sequence[bytes]

    def pick(self, places: Sequence[int]) -> Messages:
        """The messages at these indexes of the columns; a range is fast."""
        columns: Any = self.numbers, self.ingest_times, self.payloads
        if isinstance(places, range):
            picked = [column[places.start : places.stop] for column in columns]
        else:
            picked = [[column[place] for place in places] for column in columns]
        return Messages(self.stream, self.first, *picked)


class DestinationCall(NamedTuple):
    """One call with the first `message_count` of the given messages, without skipped messages."""

    message_count: int
    # The messages that are sent. If there are none, the call is not made.
    numbers: Sequence[int] = ()
    # The arguments of `send`, which only the destination reads.
    content: Any = None
    # The approximate number of bytes on the wire; not less than the payloads.
    size: int = 0
    # By sequence number: the reason why a message can never be sent.
    skipped: Mapping[int, str] = {}


class CallResult(NamedTuple):
    """The result of a call. Messages that it does not list have arrived."""

    # By sequence number: the reason why a message failed. A retry may succeed.
    failed: Mapping[int, str] = {}
    # By sequence number: the reason why a message can never arrive.
    refused: Mapping[int, str] = {}


class UnavailableError(Exception):
    """A call failed as a whole, and may succeed later. Users see the text."""

    def __init__(self, reason: str, *, retry_after: float | None = None) -> None:
        super().__init__(reason)
        # The seconds before a retry, if the destination returned them.
        self.retry_after = retry_after


class RefusedError(Exception):
    """A call was refused because a message is invalid; smaller calls find that message."""


def parse_retry_after(header: str | None, now: float) -> float | None:
    """The seconds to wait according to a Retry-After header, which has a number or a date."""
    if not header:
        return None
    if header.strip().isdecimal():
        return min(float(header), MAX_RETRY_AFTER)
    try:
        return min(max(parsedate_to_datetime(header).timestamp() - now, 0.0), MAX_RETRY_AFTER)
    except ValueError:
        return None


class DestinationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for all exports of a pipeline; see `penstock.settings`."""

    kinesis_inter_call_delay_ms: int = 1000
    # "random", "stream-name", or "field:" and the path of a JSON field, with dots between levels.
    kinesis_partition_key: str = "random"
    # Records and calls may have 10 MiB, instead of 1 MiB and 5 MiB.
    kinesis_large_records: bool = False
    # The directory of all channels; empty: below the broker's root.
    channels: str = ""
    # Directories that files may be uploaded from; empty: any directory.
    read_only_directories: tuple[str, ...] = ()
    s3_min_part_bytes: int = 5 * 1024 * 1024
    s3_tasks_at_once: int = 1
    s3_parts_at_once: int = 4
    s3_key_time_zone: str = "UTC"
    s3_delete_uploaded_files: bool = False


class ExportContext(NamedTuple):
    """The properties of an export that a destination needs."""

    stream: str
    stream_id: str
    config: ExportConfig
    settings: DestinationSettings
    # The broker's directory; None if the broker runs on another machine.
    root: str | None
    # The timeout of one call in seconds, which the destination has to apply.
    timeout: float
    # Whether the broker confirms the lease. Without the lease, another task may already have
    # delivered the messages. Raises UnavailableError if the broker does not answer.
    holds_lease: Callable[[], bool] = lambda: True


class Destination(ABC):
    """The destination of one export, for one slice. One thread uses it at a time.

    The constructor takes one `ExportContext`. There is no `close`: connections that outlive a slice
    belong to the module, are thread-safe, and are removed in a child process after a fork.

    Messages may arrive more than once, so duplicates must do no harm. An exception other than
    RefusedError ends the delivery. The broker shows it in the status of the export, and leases the
    messages again after a back-off.
    """

    # The maximum number of messages in a call, not above the batch size; None: no limit.
    max_messages: int | None = None

    @abstractmethod
    def prepare(self, messages: Messages) -> DestinationCall:
        """A call with the first of these messages, as many as fit, and at least one.

        Skipped messages count as well. Failed messages are prepared again, so sequence numbers may
        have gaps.
        """

    @abstractmethod
    def send(self, call: DestinationCall) -> CallResult:
        """Makes the call once, without retries, and within the timeout of the `ExportContext`.

        Raises UnavailableError or RefusedError if it failed as a whole.
        """

    @property
    def pause(self) -> float:
        """The number of seconds to wait between two calls."""
        return 0.0
