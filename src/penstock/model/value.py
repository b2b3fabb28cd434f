"""What all types of the model share: the names that the AWS Python SDK gives its own."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any, Self

import msgspec

from penstock.model.validation import from_server, to_wire

# A field that must be set, but not at once: programs make an object and fill it in. That it is
# missing is found where the object is checked, which is before it leaves and when it arrives.
REQUIRED: Any = None


class Value(msgspec.Struct, rename="camel"):
    def as_dict(self) -> dict[str, Any]:
        """Plain values under the names on the wire, without what is unset."""
        plain: dict[str, Any] = to_wire(self)
        return plain

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Self:
        """From plain values, unchecked: it is checked before it leaves."""
        return from_server(d, cls)


class Choice(IntEnum):
    """One of a few numbers on the wire; printed by its name, as in the AWS SDKs."""

    __str__ = Enum.__str__

    def __bool__(self) -> bool:
        # Also the one that is 0: programs write `choice or default`.
        return True

    def __format__(self, specification: str) -> str:
        return format(str(self), specification)

    def as_dict(self) -> int:
        return self.value

    @classmethod
    def from_dict(cls, d: int) -> Self:
        return cls(d)
