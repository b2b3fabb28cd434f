"""The streams of a query, and the positions between which it reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, Self

from penstock.errors import ResourceNotFoundException, SettingError
from penstock.model.limits import INT64_MAX
from penstock.model.storage import StreamPosition

# Names of streams cannot have these characters.
_WILDCARDS = frozenset("*?[")

_NUMBER = re.compile("[0-9]{1,19}")

Position = int | Literal["earliest", "latest"]


def parse_streams(text: str) -> list[str]:
    """Parses names and patterns: one, several separated by commas, or a JSON list.

    A name with a comma requires the JSON list.
    """
    if text.lstrip().startswith("[") and '"' in text:
        try:
            names = json.loads(text)
        except ValueError as error:
            raise SettingError(f"option stream is {text!r}: not a JSON list: {error}") from None
        if not all(isinstance(name, str) and name for name in names):
            raise SettingError(f"option stream is {text!r}: expected a JSON list of names")
        return list(names)
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise SettingError(f"option stream is {text!r}: expected names separated by commas")
    return names


def require_found(wanted: Iterable[str], found: Iterable[StreamPosition]) -> None:
    """Raises ResourceNotFoundException if a named stream does not exist.

    A pattern may match no stream, as its streams may be created later.
    """
    names = {stream.name for stream in found}
    for name in wanted:
        if not _WILDCARDS & set(name) and name not in names:
            raise ResourceNotFoundException(
                f"the message stream {name!r} does not exist, or the token has no access to it"
            )


class Positions(NamedTuple):
    """Starting or ending positions: a default, and positions of single streams."""

    option: str
    default: Position
    by_stream: Mapping[str, Position]

    @classmethod
    def parse(cls, option: str, text: str | None, default: Position) -> Self:
        if text is None:
            return cls(option, default, {})
        if not text.lstrip().startswith("{"):
            return cls(option, _parse(option, text.strip()), {})
        try:
            by_stream = json.loads(text)
        except ValueError as error:
            raise SettingError(f"option {option} is {text!r}: not JSON: {error}") from None
        return cls(
            option,
            default,
            {name: _parse(f"{option} of {name}", value) for name, value in by_stream.items()},
        )

    @property
    def has_latest(self) -> bool:
        return "latest" in (self.default, *self.by_stream.values())

    def require_known(self, streams: Iterable[StreamPosition]) -> None:
        names = {stream.name for stream in streams}
        for name in self.by_stream:
            if name not in names:
                raise SettingError(
                    f"option {self.option} names {name!r}, which is not a stream of the query: "
                    f"expected one of {', '.join(sorted(names)) or '(no streams exist)'}"
                )

    def position_in(self, stream: StreamPosition) -> Position:
        return self.by_stream.get(stream.name, self.default)

    def resolve(self, stream: StreamPosition) -> int:
        """Returns a sequence number, which may be outside the stream's messages."""
        position = self.position_in(stream)
        if position == "earliest":
            return stream.oldest_sequence_number
        if position == "latest":
            return stream.end_sequence_number
        return position


def require_one_bound(
    edge: Literal["starting", "ending"], position: str | None, timestamp: str | None
) -> None:
    """Raises SettingError if a bound has both a position and a timestamp."""
    if position is not None and timestamp is not None:
        raise SettingError(
            f"options {edge}Position and {edge}Timestamp are both set: expected one of them"
        )


def require_order(
    starting: Positions, ending: Positions, streams: Iterable[StreamPosition]
) -> None:
    """Raises SettingError if a starting sequence number is above the ending one."""
    for stream in streams:
        first, end = starting.position_in(stream), ending.position_in(stream)
        if isinstance(first, int) and isinstance(end, int) and first > end:
            raise SettingError(
                f"option startingPosition is {first} for stream {stream.name!r}, and "
                f"endingPosition is {end}: expected startingPosition <= endingPosition"
            )


def _parse(option: str, value: Any) -> Position:
    if value in ("earliest", "latest"):
        return value  # type: ignore[no-any-return] # one of the two
    number = int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
    if type(number) is int and 0 <= number <= INT64_MAX:
        return number
    raise SettingError(
        f"option {option} is {value!r}: expected earliest, latest, a sequence number (0 or "
        "more), or JSON with one of these for each stream"
    )
