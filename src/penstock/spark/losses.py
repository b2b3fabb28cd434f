"""Reports of messages that a query cannot read: an error, or a warning if the query allows it."""

from __future__ import annotations

import logging

from penstock.errors import StreamManagerException

logger = logging.getLogger("penstock.spark")


class DataLossError(StreamManagerException):
    """Messages of a query are missing or damaged."""


def report_loss(stream: str, loss: str, *, fails: bool) -> None:
    """Raises DataLossError if `fails`, otherwise logs a warning."""
    if fails:
        raise DataLossError(
            f"stream {stream!r}: {loss}. To continue without these messages, set option "
            "failOnDataLoss to false"
        )
    logger.warning("stream %r: %s; the query continues without these messages", stream, loss)


def describe_removed(first: int, end: int) -> str:
    """Describes messages [first, end) that retention has removed."""
    return f"{_messages(first, end)} were removed before they were read"


def describe_cut_off(end: int, previous_end: int) -> str:
    """Describes the messages of a stream that now ends before its previous end."""
    return (
        f"{_messages(end, previous_end)} no longer exist: a power cut lost unsynced messages, or "
        "an older copy was restored"
    )


def describe_damaged(first: int, end: int, reason: str) -> str:
    return f"{_messages(first, end)} cannot be read: {reason}"


def _messages(first: int, end: int) -> str:
    return f"message {first}" if end == first + 1 else f"messages {first} to {end - 1}"
