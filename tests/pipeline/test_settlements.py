"""Which messages of a slice have been dealt with."""

from __future__ import annotations

from penstock.pipeline.destinations.destination import Messages
from penstock.pipeline.settlements import Delivery, Settlements


def settlements() -> Settlements:
    """Of the slice [10, 20), of which 12 and 15 to 19 are missing."""
    return Settlements(
        Messages("s", 10, [10, 11, 13, 14], [0] * 4, [b"a", b"bb", b"ccc", b"d"]), 20
    )


def test_of_nothing_that_is_settled_the_first_message_is_the_end() -> None:
    assert settlements().describe() == Delivery(settled_end=10)


def test_what_is_settled_in_order_moves_the_end() -> None:
    noted = settlements()
    noted.note_arrived((0, 1))
    assert noted.describe() == Delivery(settled_end=13, exported_messages=2, exported_bytes=3)
    assert noted.count_ahead() == 0


def test_what_is_settled_behind_others_is_named() -> None:
    noted = settlements()
    noted.note_arrived((2,))
    noted.note_skipped(3, "too large")
    assert noted.count_ahead() == 2
    assert noted.skipped_count == 1
    described = noted.describe()
    assert (described.settled_end, described.arrived) == (10, [13, 14])
    assert described.skipped == [(14, "too large")]
    assert (described.exported_messages, described.exported_bytes) == (1, 3)


def test_once_all_is_settled_the_end_is_that_of_the_slice() -> None:
    noted = settlements()
    noted.note_skipped(3, "b")
    noted.note_skipped(0, "a")
    noted.note_arrived((1, 2))
    described = noted.describe()
    assert (described.settled_end, described.arrived) == (20, [])
    assert described.skipped == [(10, "a"), (14, "b")]
    assert noted.count_ahead() == 0
