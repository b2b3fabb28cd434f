"""S3 export tasks: messages that request the upload of a file."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from penstock.model.value import REQUIRED, Value

# S3's rules for bucket names: labels joined by dots, but no IP address.
_LABEL = r"[a-z0-9](?:[a-z0-9\-]*[a-z0-9])?"
_BUCKET = rf"\A(?!(?:\d+\.)+\d+\Z)(?:{_LABEL}\.)*{_LABEL}\Z"
# Characters that S3 advises against are rejected, except in placeholders `!{name:pattern}`.
_KEY = r"""\A(?:[^\\{ }%`\[\]"'><~#^?|]|!\{[a-zA-Z]+:[a-zA-Z/]+\})*\Z"""

Bucket: TypeAlias = Annotated[str, Meta(min_length=3, max_length=63, pattern=_BUCKET)]


class S3ExportTaskDefinition(Value):
    """An S3 task: a file to be uploaded.

    Attributes:
        input_url: The file, on the machine of the broker: `file:///srv/camera/1.png`, or a path.
        bucket: The S3 bucket.
        key: The key of the object, at most 1024 characters. `!{timestamp:yyyy-MM-dd}` is replaced.
        user_metadata: Metadata of the object.
    """

    input_url: str = REQUIRED
    bucket: Bucket = REQUIRED
    key: Annotated[str, Meta(min_length=1, max_length=1024, pattern=_KEY)] = REQUIRED
    user_metadata: dict[str, str] | None = None


def find_task(payload: bytes) -> dict[str, Any] | None:
    """The task in a message, for its status; None if the message is not a task."""
    try:
        task = _decode_task(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    fields: dict[str, Any] = msgspec.to_builtins(task)
    return fields


class _ReadableTask(msgspec.Struct, rename="camel", omit_defaults=True):
    """The fields that a client can decode: other values would make the whole status unreadable."""

    input_url: str
    bucket: str
    key: str
    user_metadata: dict[str, str] | None = None


_decode_task = msgspec.json.Decoder(_ReadableTask).decode
