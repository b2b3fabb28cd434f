"""How far a streaming query got, as Spark keeps it in its checkpoint.

    {"version": 1, "streams": {"sensors": {"id": "4f…", "next": 1234}}}

The id tells a stream from another one that was created under its name after it was deleted.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from penstock.errors import SettingError
from penstock.model.storage import StreamPosition

_VERSION = 1


class StreamOffset(NamedTuple):
    """A stream, and the number that is read next."""

    stream_id: str
    next_number: int


class Offsets(dict[str, StreamOffset]):
    """The place that a query has reached in each of its streams."""

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        if plain.get("version") != _VERSION:
            raise SettingError(
                f"the checkpoint was written by another version of Penstock (offsets of version "
                f"{plain.get('version')!r}, this one knows {_VERSION})"
            )
        return cls(
            (name, StreamOffset(stream["id"], stream["next"]))
            for name, stream in plain["streams"].items()
        )

    def to_json(self) -> dict[str, Any]:
        # Spark compares the text: the same place has to look the same.
        return {
            "version": _VERSION,
            "streams": {
                name: {"id": reached.stream_id, "next": reached.next_number}
                for name, reached in sorted(self.items())
            },
        }

    def start_in(self, stream: StreamPosition) -> int | None:
        """The number that is read next in this very stream; None if it was never read."""
        reached = self.get(stream.name)
        if reached is None or reached.stream_id != stream.stream_id:
            return None
        return reached.next_number
