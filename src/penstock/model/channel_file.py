"""Channels: the destination of exports to IoT Analytics, a service that has ended. No I/O.

A channel is a directory of Parquet files, one row for each message:

    <channels>/<channel>/date=<day of the ingest time, UTC>/
        <stream id>-<export>-<first>.parquet

<export> stands for the identifier of the export, and <first> is the lowest sequence number in the
file, in 20 digits. The sequence numbers of two files of one export and one day do not overlap.
Files that are being written have names that begin with a dot, which readers ignore.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import NamedTuple, Self

CHANNELS_DIRECTORY = "channels"
DATE_PREFIX = "date="
SUFFIX = ".parquet"

# The names that AWS allows for channels. No such name is a path outside the directory.
_NAME = re.compile(r"[A-Za-z0-9_]{1,128}")
_FILE_NAME = re.compile(
    r"(?P<stream>[^./]+)-(?P<export>[0-9a-f]{8})-(?P<first>[0-9]{20})" + re.escape(SUFFIX)
)
_MAX_ID_CHARACTERS = 128
SECONDS_PER_DAY = 86_400


def is_channel_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def message_id(prefix: str, stream: str, number: int) -> str:
    """The unique id of a message in its channel; the sequence number is never truncated."""
    suffix = f"-{number}"
    return f"{prefix}{stream}"[: _MAX_ID_CHARACTERS - len(suffix)] + suffix


def date_directory(day: int) -> str:
    """The directory for the messages of a day, counted from 1970."""
    return f"{DATE_PREFIX}{datetime.fromtimestamp(day * SECONDS_PER_DAY, UTC):%Y-%m-%d}"


def day_of(ingest_time: int) -> int:
    """The day of a time in milliseconds."""
    return ingest_time // (SECONDS_PER_DAY * 1000)


class ChannelFile(NamedTuple):
    """The name of a file in a channel."""

    stream_id: str
    # Eight hexadecimal digits of a hash of the export's identifier.
    export: str
    first: int

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """None for files of other programs and for incomplete files."""
        match = _FILE_NAME.fullmatch(name)
        return cls(match["stream"], match["export"], int(match["first"])) if match else None

    @property
    def name(self) -> str:
        return f"{self.stream_id}-{self.export}-{self.first:020}{SUFFIX}"


def abbreviate(identifier: str) -> str:
    """An export's identifier as it appears in file names."""
    return hashlib.sha256(identifier.encode()).hexdigest()[:8]
