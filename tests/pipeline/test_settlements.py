"""Which messages of a slice have arrived or were skipped."""

from __future__ import annotations

from penstock.pipeline.destinations.destination import Messages
from penstock.pipeline.settlements import Delivery, Settlements


def settlements() -> Settlements:
    """Of the slice [10, 20), of which 12 and 15 to 19 are missing."""
    return Settlements(
        Messages("s", 10, [10, 11, 13, 14], [0] * 4, [b"a", b"bb", b"ccc", b"d"]), 20
    )


def test_end_is_the_first_message_if_none_is_settled() -> None:
    assert settlements().describe() == Delivery(settled_end=10)


def test_end_moves_with_messages_settled_in_order() -> None:
    noted = settlements()
    noted.note_arrived((0, 1))
    assert noted.describe() == Delivery(settled_end=13, exported_messages=2, exported_bytes=3)
    assert noted.count_ahead() == 0


def test_messages_settled_behind_others_are_listed() -> None:
    noted = settlements()
    noted.note_arrived((2,))
    noted.note_skipped(3, "too large")
    assert noted.count_ahead() == 2
    assert noted.skipped_count == 1
    described = noted.describe()
    assert (described.settled_end, described.arrived) == (10, [13, 14])
    assert described.skipped == [(14, "too large")]
    assert (described.exported_messages, described.exported_bytes) == (1, 3)


def test_end_of_the_slice_is_reached_when_all_are_settled() -> None:
    noted = settlements()
    noted.note_skipped(3, "b")
    noted.note_skipped(0, "a")
    noted.note_arrived((1, 2))
    described = noted.describe()
    assert (described.settled_end, described.arrived) == (20, [])
    # In the order in which they were skipped: reports tell what is new.
    assert described.skipped == [(14, "b"), (10, "a")]
    assert noted.count_ahead() == 0
