"""The options of format("penstock"), for each kind of query, and their validation.

Spark passes options as strings, with names in lower case. An unknown option, or one of another
kind of query, is an error, because silently ignored options are hard to notice.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from penstock.client.endpoint import EndpointOptions
from penstock.errors import SettingError
from penstock.model.limits import INT64_MAX, MaxSize, SegmentSize, TimeToLiveMillis
from penstock.model.validation import find_problem

Count: TypeAlias = Annotated[int, Meta(ge=1, le=INT64_MAX)]

# The path by which a task reads messages.
Via: TypeAlias = Literal["auto", "files", "wire"]


class QueryOptions(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of the options of each kind of query."""


class BrokerOptions(QueryOptions, frozen=True, rename="camel", kw_only=True):
    """The broker's address; missing options are discovered as by every client."""

    host: str | None = None
    port: str | None = None
    token: str | None = None
    # "true", or a PEM file with the certificates to trust.
    tls: str | None = None
    root: str | None = None
    # Seconds for which a running query waits for an unavailable broker.
    reconnect_timeout: Annotated[float, Meta(ge=0)] = 60.0

    def endpoint_options(self) -> EndpointOptions:
        tls = {"true": True, "false": False}.get((self.tls or "").lower(), self.tls)
        return EndpointOptions(self.host, self.port, None, self.token, tls, self.root)


class ReadOptions(BrokerOptions, frozen=True, rename="camel", kw_only=True):
    stream: Annotated[str, Meta(min_length=1)]
    starting_position: str | None = None
    starting_timestamp: str | None = None
    min_partitions: Count = 1
    fail_on_data_loss: bool = True
    via: Via = "auto"


class BatchReadOptions(ReadOptions, frozen=True, rename="camel", kw_only=True):
    ending_position: str | None = None
    ending_timestamp: str | None = None


class StreamReadOptions(ReadOptions, frozen=True, rename="camel", kw_only=True):
    max_messages_per_trigger: Count | None = None
    max_bytes_per_trigger: Count | None = None


class ChannelReadOptions(QueryOptions, frozen=True, rename="camel", kw_only=True):
    """Options for reading a channel, which needs no broker."""

    channel: Annotated[str, Meta(min_length=1)]
    # The directory of all channels, or the broker's root directory.
    channels: str | None = None
    root: str | None = None
    min_partitions: Count = 1


class WriteOptions(BrokerOptions, frozen=True, rename="camel", kw_only=True):
    # Without it, the column `stream` of a row names its stream.
    stream: Annotated[str, Meta(min_length=1)] | None = None
    # The message of a row: its column `payload`, or the whole row as JSON.
    payload: Literal["column", "json"] = "column"
    create_stream: bool = False
    # The definition of a created stream.
    max_size: MaxSize | None = None
    stream_segment_size: SegmentSize | None = None
    time_to_live_millis: TimeToLiveMillis | None = None
    strategy_on_full: Literal["RejectNewData", "OverwriteOldestData"] = "OverwriteOldestData"
    persistence: Literal["File", "Memory"] = "File"
    flush_on_write: bool = False


# The name of each kind in error messages.
_KINDS: dict[type[QueryOptions], str] = {
    BatchReadOptions: "spark.read",
    StreamReadOptions: "spark.readStream",
    ChannelReadOptions: "a channel",
    WriteOptions: "a write",
}

# Options of Spark itself, which it also passes to a sink.
_SPARK_OPTIONS = frozenset(("checkpointlocation", "queryname"))

T = TypeVar("T", bound=QueryOptions)


def is_channel_query(options: Mapping[str, str]) -> bool:
    """Whether a query reads a channel; SettingError if it also names streams."""
    names = {option.lower() for option in options}
    if {"channel", "stream"} <= names:
        raise SettingError(
            "options stream and channel are both set: expected one of them, as a query reads "
            "either streams of a broker or a channel that an export has filled"
        )
    return "channel" in names


def check_option_names(options: Mapping[str, str]) -> None:
    """Raises SettingError for a name that is unknown for all kinds of queries."""
    known = {name for kind in _KINDS for name in kind.__struct_encode_fields__}
    for option in options:
        if option.lower() not in {name.lower() for name in known} | _SPARK_OPTIONS:
            raise SettingError(_unknown(option, known))


def parse_options(options: Mapping[str, str], kind: type[T]) -> T:
    """Parses the options of one kind of query; SettingError for another option or a bad value."""
    names = {name.lower(): name for name in kind.__struct_encode_fields__}
    found: dict[str, str] = {}
    for option, value in options.items():
        name = names.get(option.lower())
        if name is not None:
            found[name] = value
        elif option.lower() not in _SPARK_OPTIONS:
            check_option_names({option: value})
            raise SettingError(_misplaced(option, kind))
    try:
        return msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        problem = find_problem(error, found, kind)
        if problem.shown is None:
            raise SettingError(_missing(problem.expected, kind)) from None
        # Every option is a string, so its type is not the problem.
        expected = problem.expected.removesuffix(", got str")
        raise SettingError(f"option {problem._replace(expected=expected)}") from None


def _unknown(option: str, known: set[str]) -> str:
    by_lower = {name.lower(): name for name in known}
    if option.lower() == "path":
        return 'unknown option path: name the stream with .option("stream", …) and call .load()'
    near = difflib.get_close_matches(option.lower(), by_lower, n=1)
    if near:
        return f"unknown option {option}: did you mean {by_lower[near[0]]}?"
    return f"unknown option {option}: expected one of {', '.join(sorted(known))}"


def _misplaced(option: str, kind: type[QueryOptions]) -> str:
    matches = [
        (name, label)
        for other, label in _KINDS.items()
        for name in other.__struct_encode_fields__
        if name.lower() == option.lower()
    ]
    name, labels = matches[0][0], " and ".join(label for _, label in matches)
    return f"option {name} is for {labels}, not for {_KINDS[kind]}"


def _missing(expected: str, kind: type[QueryOptions]) -> str:
    name = expected.rsplit(" ", 1)[-1]
    return f"option {name} is missing: {_KINDS[kind]} requires it"
