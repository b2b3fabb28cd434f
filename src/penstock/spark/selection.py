"""Which streams a query is about, and from where to where it reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, Self

from penstock.errors import ResourceNotFoundException, SettingError
from penstock.model.limits import INT64_MAX
from penstock.model.storage import StreamPosition

# No stream's name holds one of these, so that a pattern is never mistaken for a name.
_WILDCARDS = frozenset("*?[")

_NUMBER = re.compile("[0-9]{1,19}")

Position = int | Literal["earliest", "latest"]


def parse_streams(text: str) -> list[str]:
    """Names and patterns: one, several with commas between them, or a JSON list.

    A name may hold a comma itself; only the list can name it.
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
        raise SettingError(f"option stream is {text!r}: a name between two commas is missing")
    return names


def require_found(wanted: Iterable[str], found: Iterable[StreamPosition]) -> None:
    """ResourceNotFoundException for a stream that was named and is not there.

    A pattern may match none: its streams may be created later.
    """
    names = {stream.name for stream in found}
    for name in wanted:
        if not _WILDCARDS & set(name) and name not in names:
            raise ResourceNotFoundException(
                f"the message stream {name!r} does not exist, or the token is not for it"
            )


class Positions(NamedTuple):
    """A starting or an ending position: one for all streams, and others for some of them."""

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
                    f"option {self.option} names {name!r}, which is none of the query's streams: "
                    f"{', '.join(sorted(names)) or 'there are none yet'}"
                )

    def position_in(self, stream: StreamPosition) -> Position:
        return self.by_stream.get(stream.name, self.default)

    def resolve(self, stream: StreamPosition) -> int:
        """A sequence number; it may be one that is gone, or that is not there yet."""
        position = self.position_in(stream)
        if position == "earliest":
            return stream.oldest_sequence_number
        if position == "latest":
            return stream.end_sequence_number
        return position


def require_one_bound(
    edge: Literal["starting", "ending"], position: str | None, timestamp: str | None
) -> None:
    """SettingError if a query has both a position and a timestamp for the same bound."""
    if position is not None and timestamp is not None:
        raise SettingError(
            f"there are options {edge}Position and {edge}Timestamp: expected one of them"
        )


def require_order(
    starting: Positions, ending: Positions, streams: Iterable[StreamPosition]
) -> None:
    """SettingError for a stream whose starting sequence number is above its ending one."""
    for stream in streams:
        first, end = starting.position_in(stream), ending.position_in(stream)
        if isinstance(first, int) and isinstance(end, int) and first > end:
            raise SettingError(
                f"option startingPosition is {first} for stream {stream.name!r}, which is above "
                f"endingPosition {end}: expected a number that is not above it"
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
