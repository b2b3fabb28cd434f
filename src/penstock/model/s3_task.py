"""S3 export tasks: the message that asks for a file to be uploaded."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from penstock.model.value import REQUIRED, Value

# S3's rules for bucket names: labels joined by dots, and not the look of an IP address.
_LABEL = r"[a-z0-9](?:[a-z0-9\-]*[a-z0-9])?"
_BUCKET = rf"\A(?!(?:\d+\.)+\d+\Z)(?:{_LABEL}\.)*{_LABEL}\Z"
# What S3 advises against in keys is refused, but for the placeholders `!{name:pattern}`.
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
    """A task as it was given, for whoever looks for it in a status; None if it is none at all."""
    try:
        task = _decode_given(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    given: dict[str, Any] = msgspec.to_builtins(task)
    return given


class _Given(msgspec.Struct, rename="camel", omit_defaults=True):
    """What a client can read as a task: what it cannot would cost it the whole status."""

    input_url: str
    bucket: str
    key: str
    user_metadata: dict[str, str] | None = None


_decode_given = msgspec.json.Decoder(_Given).decode
