"""Memory for large requests: who gets it, who waits, and in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.memory import FrameMemory

MIB = 1024 * 1024


class Line:
    """Owners who reserve, and a note of who was told to go on."""

    def __init__(self, limit: int) -> None:
        self.memory = FrameMemory(limit)
        self.went_on: list[str] = []

    def reserve(self, owner: str, size: int) -> bool:
        return self.memory.reserve(owner, size, lambda: self.went_on.append(owner))


@pytest.fixture
def line() -> Line:
    return Line(10 * MIB)


def test_what_fits_is_had_at_once(line: Line) -> None:
    assert line.reserve("a", 6 * MIB)
    assert line.reserve("b", 4 * MIB)
    assert line.memory.admits("a")
    assert line.went_on == []


def test_small_frames_are_not_counted(line: Line) -> None:
    assert line.reserve("a", 10 * MIB)

    assert all(line.reserve(f"small {number}", MIB) for number in range(1000))


def test_the_largest_frame_fits_by_itself_and_one_with_its_head_as_well(line: Line) -> None:
    assert line.reserve("a", 10 * MIB + 4)
    assert not line.reserve("b", 10 * MIB + 4)

    line.memory.release("a")

    assert line.went_on == ["b"]


def test_whoever_does_not_fit_waits_until_there_is_room(line: Line) -> None:
    line.reserve("a", 6 * MIB)
    line.reserve("b", 4 * MIB)

    assert not line.reserve("c", 5 * MIB)
    assert not line.memory.admits("c")

    line.memory.release("b")
    assert line.went_on == []
    line.memory.release("a")
    assert line.went_on == ["c"]
    assert line.memory.admits("c")


def test_nobody_jumps_the_queue(line: Line) -> None:
    line.reserve("a", 8 * MIB)
    assert not line.reserve("large", 10 * MIB)
    # It would fit now, and would keep the large one waiting for ever.
    assert not line.reserve("b", 2 * MIB)
    assert not line.reserve("c", 2 * MIB)

    line.memory.release("a")
    assert line.went_on == ["large"]
    line.memory.release("large")
    assert line.went_on == ["large", "b", "c"]


def test_one_who_leaves_the_line_lets_those_behind_go_on(line: Line) -> None:
    line.reserve("a", 8 * MIB)
    line.reserve("large", 10 * MIB)
    line.reserve("b", 2 * MIB)

    line.memory.release("large")

    assert line.went_on == ["b"]


def test_asking_again_for_the_same_frame_changes_nothing(line: Line) -> None:
    assert line.reserve("a", 10 * MIB)
    assert line.reserve("a", 10 * MIB)

    line.memory.release("a")

    assert line.reserve("b", 10 * MIB)


def test_releasing_what_was_never_reserved_does_nothing(line: Line) -> None:
    line.memory.release("nobody")

    assert line.reserve("a", 10 * MIB)


owners = st.sampled_from("abcdef")
actions = st.lists(
    st.tuples(owners, st.none() | st.integers(1, 10).map(lambda number: number * MIB)), max_size=40
)


@given(actions)
def test_no_more_is_given_than_there_is_and_nobody_waits_for_ever(
    actions: list[tuple[str, int | None]],
) -> None:
    line = Line(10 * MIB)
    has: dict[str, int] = {}
    waits: dict[str, int] = {}
    for owner, size in actions:
        if size is None or owner in has or owner in waits:
            has.pop(owner, None)
            waits.pop(owner, None)
            line.memory.release(owner)
        elif line.reserve(owner, size):
            has[owner] = size
        else:
            waits[owner] = size
        for went_on in line.went_on:
            has[went_on] = waits.pop(went_on)
        line.went_on.clear()
        assert sum(size for size in has.values() if size > MIB) <= 10 * MIB
        assert all(line.memory.admits(owner) == (owner not in waits) for owner in "abcdef")
    for owner in list(has):
        line.memory.release(owner)
        assert has or not waits
    while line.went_on:
        line.memory.release(line.went_on.pop())
    assert all(line.memory.admits(owner) for owner in "abcdef")
