"""What a query should have read and cannot: an error, or a warning where the query allows it."""

from __future__ import annotations

import logging

from penstock.errors import StreamManagerException

logger = logging.getLogger("penstock.spark")


class DataLossError(StreamManagerException):
    """Messages that a query should have read are gone or damaged."""


def report_loss(stream: str, what: str, *, fails: bool) -> None:
    """DataLossError if the query fails on it; otherwise a line in the log of whoever met it."""
    if fails:
        raise DataLossError(
            f"stream {stream!r}: {what}. To go on with what is left, set the option failOnDataLoss "
            "to false"
        )
    logger.warning("stream %r: %s; the query goes on with what is left", stream, what)


def describe_removed(first: int, end: int) -> str:
    """Messages [first, end) that retention has removed."""
    return f"{_messages(first, end)} were removed before they were read"


def describe_cut_off(end: int, wanted: int) -> str:
    """A stream that has fewer messages than it had."""
    return (
        f"{_messages(end, wanted)} are no longer there: what was not yet synced was lost in a "
        "power cut, or an older copy was restored"
    )


def describe_damaged(first: int, end: int, reason: str) -> str:
    return f"{_messages(first, end)} cannot be read: {reason}"


def _messages(first: int, end: int) -> str:
    return f"message {first}" if end == first + 1 else f"messages {first} to {end - 1}"
