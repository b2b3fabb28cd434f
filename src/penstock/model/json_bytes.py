"""JSON bodies of messages, for SiteWise and S3 exports and for status streams."""

from __future__ import annotations

import json
from typing import TypeVar

from penstock.model.validation import validate
from penstock.model.value import Value

V = TypeVar("V", bound=Value)


class Util:
    """Two functions under their names in the AWS SDK."""

    @staticmethod
    def validate_and_serialize_to_json_bytes(data: Value) -> bytes:
        """The message for this object; raises ValidationException if it is invalid."""
        return json.dumps(_without_empty_lists(validate(data).as_dict())).encode()

    @staticmethod
    def deserialize_json_bytes_to_obj(bytes: bytes, type: type[V]) -> V:  # noqa: A002 - the SDK's
        """The object in a message; raises ValueError if the message is invalid."""
        return type.from_dict(json.loads(bytes))


def _without_empty_lists(plain: dict[str, object]) -> dict[str, object]:
    return {
        key: _without_empty_lists(value) if isinstance(value, dict) else value
        for key, value in plain.items()
        if value != []
    }
