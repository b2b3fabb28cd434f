"""Offsets of a streaming query in Spark's checkpoint.

    {"version": 1, "streams": {"sensors": {"id": "4f…", "next": 1234}}}

The id distinguishes a stream from a later stream with the same name.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from penstock.errors import SettingError
from penstock.model.storage import StreamPosition

_VERSION = 1


class StreamOffset(NamedTuple):
    """A stream, and the sequence number that is read next."""

    stream_id: str
    next_number: int


class Offsets(dict[str, StreamOffset]):
    """The offset of a query in each of its streams."""

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        if plain.get("version") != _VERSION:
            raise SettingError(
                "the checkpoint was written by another version of Penstock: its offsets have "
                f"version {plain.get('version')!r}, expected {_VERSION}"
            )
        return cls(
            (name, StreamOffset(stream["id"], stream["next"]))
            for name, stream in plain["streams"].items()
        )

    def to_json(self) -> dict[str, Any]:
        # Spark compares offsets as text, so the order of streams must be stable.
        return {
            "version": _VERSION,
            "streams": {
                name: {"id": offset.stream_id, "next": offset.next_number}
                for name, offset in sorted(self.items())
            },
        }

    def start_in(self, stream: StreamPosition) -> int | None:
        """Returns the sequence number that is read next; None if this stream was never read."""
        offset = self.get(stream.name)
        if offset is None or offset.stream_id != stream.stream_id:
            return None
        return offset.next_number
