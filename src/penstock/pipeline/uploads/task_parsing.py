"""S3 tasks: parses messages, and resolves the placeholders of keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timezone
from typing import Annotated
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta

from penstock.errors import InvalidRequestException
from penstock.model.s3_task import Bucket
from penstock.model.validation import from_wire
from penstock.model.value import REQUIRED, Value
from penstock.pipeline.uploads.date_patterns import PatternError, format_moment

_MAX_KEY_BYTES = 1024
# Characters that S3 advises against in keys.
_UNSAFE_CHARACTER = re.compile(r"""[\\{ }%`\[\]"'><~#^?|]""")
_PLACEHOLDER = re.compile(r"!\{([^:}]*):?([^}]*)\}")
# The first is reserved by AWS's stream manager, the second by S3 for its own headers.
_RESERVED_PREFIXES = ("$aws-gg-", "x-amz-")
# As in HTTP headers.
_METADATA_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_METADATA_VALUE = re.compile(r"[\x20-\x7e]*")


class TaskError(Exception):
    """A task that can never succeed. Users see the text."""


class S3Task(Value):
    """Like `S3ExportTaskDefinition`, but patterns in keys are not only letters and slashes."""

    input_url: Annotated[str, Meta(min_length=1)] = REQUIRED
    bucket: Bucket = REQUIRED
    key: Annotated[str, Meta(min_length=1, max_length=_MAX_KEY_BYTES)] = REQUIRED
    user_metadata: dict[str, str] | None = None


def parse_task(payload: bytes) -> S3Task:
    """The task of a message; TaskError if it is invalid. Placeholders are not checked here."""
    try:
        plain = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TaskError(f"the message is not a task: not JSON: {error}") from None
    if not isinstance(plain, dict):
        raise TaskError("the message is not a task: expected a JSON object")
    try:
        task = from_wire(plain, S3Task)
    except InvalidRequestException as error:
        raise TaskError(f"the message is not a task: {error}") from None
    _check_metadata(task.user_metadata or {})
    unsafe = _UNSAFE_CHARACTER.search(_PLACEHOLDER.sub("", task.key))
    if unsafe:
        raise TaskError(f"the key {task.key!r} has {unsafe[0]!r}, which is not allowed in keys")
    return task


def _check_metadata(metadata: Mapping[str, str]) -> None:
    names = [name.lower() for name in metadata]
    for name, value in metadata.items():
        if names.count(name.lower()) > 1:
            raise TaskError(f"userMetadata has {name!r} twice: S3 converts names to lower case")
        for prefix in _RESERVED_PREFIXES:
            if name.lower().startswith(prefix):
                raise TaskError(f"userMetadata has {name!r}: names with {prefix!r} are reserved")
        if not _METADATA_NAME.fullmatch(name):
            raise TaskError(
                f"userMetadata has {name!r}: allowed are letters, digits and "
                "! # $ % & ' * + . ^ _ ` | ~ -"
            )
        if not _METADATA_VALUE.fullmatch(value):
            raise TaskError(f"userMetadata {name!r} is {value!r}: only printable ASCII is allowed")


def resolve_key(key: str, epoch_nanos: int, zone: ZoneInfo | timezone) -> str:
    """The key with its placeholders resolved; TaskError if the key is invalid."""

    def resolve(found: re.Match[str]) -> str:
        name, pattern = found.groups()
        if name != "timestamp" or not pattern:
            raise TaskError(
                f"the key {key!r} has the placeholder {found[0]!r}: only !{{timestamp:pattern}} "
                "is allowed, with a pattern of Java's DateTimeFormatter"
            )
        try:
            return format_moment(pattern, epoch_nanos, zone)
        except PatternError as error:
            raise TaskError(f"the key {key!r} has the pattern {pattern!r}: {error}") from None

    resolved = _PLACEHOLDER.sub(resolve, key)
    if not resolved:
        raise TaskError(f"the key {key!r} is empty after its placeholders are resolved")
    if len(resolved.encode()) > _MAX_KEY_BYTES:
        raise TaskError(f"the key has more than {_MAX_KEY_BYTES} bytes: {resolved!r}")
    return resolved
