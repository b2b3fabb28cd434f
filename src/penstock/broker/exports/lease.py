"""Leases: which task delivers which messages, and until when."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

_ID = re.compile(r"(?P<name>.+)/(?P<first>[0-9]{1,19})-(?P<end>[0-9]{1,19})/(?P<serial>[0-9a-f-]+)")


class Holder(NamedTuple):
    """A task of a pipeline."""

    pipeline: str
    task: str


class Lease(NamedTuple):
    """Messages [first, end) of an export that a task holds until `ends_at`.

    Its reports are accepted also afterwards, until another task has a lease.
    """

    id: str
    holder: Holder
    first: int
    end: int
    # On the loop's clock.
    ends_at: float
    # Bytes that the bandwidth was charged with and that no report has accounted for.
    charged: float = 0.0
    # An earlier report has settled messages or parts of files.
    has_advanced: bool = False

    @classmethod
    def make(
        cls, name: str, serial: str, holder: Holder, first: int, end: int, ends_at: float
    ) -> Self:
        """`name` identifies the deliverable, and `serial` is unique."""
        return cls(f"{name}/{first}-{end}/{serial}", holder, first, end, ends_at)


class ParsedId(NamedTuple):
    """The contents of a lease's id."""

    name: str
    first: int
    end: int
    serial: str


def parse_id(lease_id: str) -> ParsedId | None:
    found = _ID.fullmatch(lease_id)
    if found is None:
        return None
    return ParsedId(found["name"], int(found["first"]), int(found["end"]), found["serial"])
