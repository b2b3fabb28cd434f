"""Base classes of the model, with the method names of the AWS Python SDK."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any, Self

import msgspec

from penstock.model.validation import from_server, to_wire

# The default of a required field. Programs create an object and set its fields later, so a missing
# field is found when the object is sent or received.
REQUIRED: Any = None


class Value(msgspec.Struct, rename="camel"):
    def as_dict(self) -> dict[str, Any]:
        """Plain values under their names on the wire, without unset fields."""
        plain: dict[str, Any] = to_wire(self)
        return plain

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Self:
        """Converts plain values without checking them; they are checked when the object is sent."""
        return from_server(d, cls)


class Choice(IntEnum):
    """An enum that is a number on the wire and prints its name, as in the AWS SDKs."""

    __str__ = Enum.__str__

    def __bool__(self) -> bool:
        # True also for 0: programs write `choice or default`.
        return True

    def __format__(self, specification: str) -> str:
        return format(str(self), specification)

    def as_dict(self) -> int:
        return self.value

    @classmethod
    def from_dict(cls, d: int) -> Self:
        return cls(d)
