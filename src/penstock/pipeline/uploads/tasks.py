"""S3 tasks: what a message asks for, or why it cannot be done."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, tzinfo
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.errors import InvalidRequestException
from penstock.model.base import REQUIRED, Value
from penstock.model.s3 import Bucket
from penstock.model.validation import from_wire
from penstock.pipeline.uploads.date_patterns import PatternError, format_moment

_MAX_KEY_BYTES = 1024
# What S3 advises against in keys.
_UNSAFE_CHARACTER = re.compile(r"""[\\{ }%`\[\]"'><~#^?|]""")
_PLACEHOLDER = re.compile(r"!\{([^:}]*):?([^}]*)\}")
# The first is the original's own, the second is how S3 tells its headers from those of users.
_RESERVED_PREFIXES = ("$aws-gg-", "x-amz-")
# As HTTP has it for names of headers, and for their values.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")


class TaskError(Exception):
    """A task that can never be done; its text tells a person why."""


class Task(Value):
    """As `S3ExportTaskDefinition`, whose key is checked here, with reasons that name what is wrong.

    Of patterns in keys the SDKs let letters and slashes pass. Here they may be any of Java's.
    """

    input_url: Annotated[str, Meta(min_length=1)] = REQUIRED
    bucket: Bucket = REQUIRED
    key: Annotated[str, Meta(min_length=1, max_length=_MAX_KEY_BYTES)] = REQUIRED
    user_metadata: dict[str, str] | None = None


def parse_task(payload: bytes) -> Task:
    """The task of a message; TaskError if it is none, or one that S3 would never take."""
    try:
        plain = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TaskError(f"the message is not a task: not JSON: {error}") from None
    if not isinstance(plain, dict):
        raise TaskError("the message is not a task: expected a JSON object")
    try:
        task = from_wire(plain, Task)
    except InvalidRequestException as error:
        raise TaskError(f"the message is not a task: {error}") from None
    _check_metadata(task.user_metadata or {})
    _check_key(task.key)
    return task


def _check_metadata(metadata: Mapping[str, str]) -> None:
    names = [name.lower() for name in metadata]
    for name, value in metadata.items():
        if names.count(name.lower()) > 1:
            raise TaskError(f"userMetadata has {name!r} twice: S3 turns names into lower case")
        for prefix in _RESERVED_PREFIXES:
            if name.lower().startswith(prefix):
                raise TaskError(f"userMetadata has {name!r}: names with {prefix!r} are reserved")
        if not _HEADER_NAME.fullmatch(name):
            raise TaskError(
                f"userMetadata has {name!r}: a name is made of letters, digits and "
                "! # $ % & ' * + . ^ _ ` | ~ -"
            )
        if not _HEADER_VALUE.fullmatch(value):
            raise TaskError(f"userMetadata {name!r} is {value!r}: S3 takes printable ASCII only")


def _check_key(key: str) -> None:
    unsafe = _UNSAFE_CHARACTER.search(_PLACEHOLDER.sub("", key))
    if unsafe:
        raise TaskError(f"the key {key!r} has {unsafe[0]!r}, which keys may not have")
    # Whatever the time: what is wrong with a pattern is wrong with it always.
    resolve_key(key, 0, UTC)


def resolve_key(key: str, epoch_nanos: int, zone: tzinfo) -> str:
    """The key with its placeholders filled in, at a moment."""

    def fill(found: re.Match[str]) -> str:
        name, pattern = found.groups()
        if name != "timestamp" or not pattern:
            raise TaskError(
                f"the key {key!r} has the placeholder {found[0]!r}: there is only "
                "!{timestamp:pattern}, with a pattern of Java's DateTimeFormatter"
            )
        try:
            return format_moment(pattern, epoch_nanos, zone)
        except PatternError as error:
            raise TaskError(f"the key {key!r} has the pattern {pattern!r}: {error}") from None

    resolved = _PLACEHOLDER.sub(fill, key)
    if not resolved:
        raise TaskError(f"the key {key!r} is empty once it is filled in")
    if len(resolved.encode()) > _MAX_KEY_BYTES:
        raise TaskError(f"the key has more than {_MAX_KEY_BYTES} bytes: {resolved!r}")
    return resolved
