"""S3 export tasks: the message that asks for a file to be uploaded."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from penstock.model.base import REQUIRED, Value

# S3's rules for bucket names: labels joined by dots, and not the look of an IP address.
_LABEL = r"[a-z0-9](?:[a-z0-9\-]*[a-z0-9])?"
_BUCKET = rf"\A(?!(?:\d+\.)+\d+\Z)(?:{_LABEL}\.)*{_LABEL}\Z"
# What S3 advises against in keys is refused, but for the placeholders `!{name:pattern}`.
_KEY = r"""\A(?:[^\\{ }%`\[\]"'><~#^?|]|!\{[a-zA-Z]+:[a-zA-Z/]+\})*\Z"""


class S3ExportTaskDefinition(Value):
    input_url: str = REQUIRED
    bucket: Annotated[str, Meta(min_length=3, max_length=63, pattern=_BUCKET)] = REQUIRED
    key: Annotated[str, Meta(min_length=1, max_length=1024, pattern=_KEY)] = REQUIRED
    user_metadata: dict[str, str] | None = None
