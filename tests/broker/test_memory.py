"""Memory for large requests and answers: limits, and the order of waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.memory import (
    SMALL_ANSWER_BYTES,
    AnswerMemory,
    AnswerRoom,
    FrameMemory,
)

MIB = 1024 * 1024


class Line:
    """A frame memory that records which owners may go on."""

    def __init__(self, limit: int) -> None:
        self.memory = FrameMemory(limit)
        self.went_on: list[str] = []

    def reserve(self, owner: str, size: int) -> bool:
        return self.memory.reserve(owner, size, lambda: self.went_on.append(owner))


@pytest.fixture
def line() -> Line:
    return Line(10 * MIB)


def test_frame_that_fits_is_reserved_at_once(line: Line) -> None:
    assert line.reserve("a", 6 * MIB)
    assert line.reserve("b", 4 * MIB)
    assert line.memory.admits("a")
    assert line.went_on == []


def test_small_frames_are_not_counted(line: Line) -> None:
    assert line.reserve("a", 10 * MIB)

    assert all(line.reserve(f"small {number}", MIB) for number in range(1000))


def test_single_frame_of_max_size_is_admitted_also_with_its_header(line: Line) -> None:
    assert line.reserve("a", 10 * MIB + 4)
    assert not line.reserve("b", 10 * MIB + 4)

    line.memory.release("a")

    assert line.went_on == ["b"]


def test_frame_that_does_not_fit_waits_for_memory(line: Line) -> None:
    line.reserve("a", 6 * MIB)
    line.reserve("b", 4 * MIB)

    assert not line.reserve("c", 5 * MIB)
    assert not line.memory.admits("c")

    line.memory.release("b")
    assert line.went_on == []
    line.memory.release("a")
    assert line.went_on == ["c"]
    assert line.memory.admits("c")


def test_small_reservation_does_not_overtake_a_large_one(line: Line) -> None:
    line.reserve("a", 8 * MIB)
    assert not line.reserve("large", 10 * MIB)
    # It would fit now, but would delay the large one.
    assert not line.reserve("b", 2 * MIB)
    assert not line.reserve("c", 2 * MIB)

    line.memory.release("a")
    assert line.went_on == ["large"]
    line.memory.release("large")
    assert line.went_on == ["large", "b", "c"]


def test_release_of_a_waiting_owner_admits_the_next_one(line: Line) -> None:
    line.reserve("a", 8 * MIB)
    line.reserve("large", 10 * MIB)
    line.reserve("b", 2 * MIB)

    line.memory.release("large")

    assert line.went_on == ["b"]


def test_second_reservation_of_an_owner_changes_nothing(line: Line) -> None:
    assert line.reserve("a", 10 * MIB)
    assert line.reserve("a", 10 * MIB)

    line.memory.release("a")

    assert line.reserve("b", 10 * MIB)


def test_release_without_reservation_does_nothing(line: Line) -> None:
    line.memory.release("unknown")

    assert line.reserve("a", 10 * MIB)


owners = st.sampled_from("abcdef")
actions = st.lists(
    st.tuples(owners, st.none() | st.integers(1, 10).map(lambda number: number * MIB)), max_size=40
)


@given(actions)
def test_reservations_stay_within_the_limit_and_every_owner_is_admitted(
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


# Answers


def test_small_answers_are_always_admitted() -> None:
    memory = AnswerMemory(4 * MIB)
    memory.hold(100 * MIB)

    room = memory.open()

    assert room.grow(SMALL_ANSWER_BYTES, is_needed=False)
    assert memory.used == 100 * MIB


def test_optional_part_of_an_answer_leaves_half_of_the_free_memory() -> None:
    memory = AnswerMemory(16 * MIB)
    first, second = memory.open(), memory.open()

    assert first.grow(8 * MIB, is_needed=False)
    assert not first.grow(8 * MIB + 1, is_needed=False)
    assert second.grow(4 * MIB, is_needed=False)
    assert not second.grow(5 * MIB, is_needed=False)
    # The minimum of a read may use all memory.
    assert second.grow(8 * MIB, is_needed=True)
    assert memory.used == 16 * MIB


def test_canceled_wait_admits_the_next_answer() -> None:
    memory = AnswerMemory(10 * MIB)
    taken = memory.open()
    taken.require(6 * MIB)
    granted: list[AnswerRoom] = []
    large = memory.wait(8 * MIB, granted.append)
    small = memory.wait(2 * MIB, granted.append)
    assert granted == []

    large.release()

    assert granted == [small]
    assert memory.used == 8 * MIB


def test_single_oversized_answer_is_admitted() -> None:
    memory = AnswerMemory(4 * MIB)
    memory.hold(5 * MIB)
    room, other = memory.open(), memory.open()

    assert room.grow(100 * MIB, is_needed=True)
    assert room.grow(101 * MIB, is_needed=True)
    assert not other.grow(MIB, is_needed=True)
    room.release()
    assert other.grow(MIB, is_needed=True)


def test_waiting_answers_are_admitted_in_order() -> None:
    memory = AnswerMemory(10 * MIB)
    first = memory.open()
    assert first.grow(8 * MIB, is_needed=True)
    granted: list[AnswerRoom] = []
    large = memory.wait(5 * MIB, granted.append)
    small = memory.wait(MIB, granted.append)
    gone = memory.wait(MIB, granted.append)
    assert memory.is_short

    # Neither a new answer nor the one behind the large answer overtakes it.
    assert not memory.open().grow(MIB, is_needed=True)
    assert granted == []
    gone.release()
    first.release()

    assert granted == [large, small]
    assert memory.used == 6 * MIB
    assert not memory.is_short


def test_oversized_answer_waits_for_all_others() -> None:
    memory = AnswerMemory(10 * MIB)
    first = memory.open()
    assert first.grow(MIB, is_needed=True)
    granted: list[AnswerRoom] = []
    room = memory.wait(100 * MIB, granted.append)
    assert granted == []

    first.release()

    assert granted == [room]
    room.shrink(50 * MIB)
    assert memory.used == 50 * MIB
    room.shrink(SMALL_ANSWER_BYTES)
    assert memory.used == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 12 * MIB), st.booleans()),
        max_size=60,
    )
)
def test_answers_stay_within_the_budget(steps: list[tuple[int, int, bool]]) -> None:
    limit = 10 * MIB
    memory = AnswerMemory(limit)
    rooms: list[AnswerRoom] = []
    for action, size, is_needed in steps:
        if action <= 1:
            rooms.append(memory.open())
            rooms[-1].grow(size, is_needed=is_needed)
        elif action == 2:
            rooms.append(memory.wait(size, lambda _: None))
        elif action == 3 and rooms:
            rooms[size % len(rooms)].grow(size, is_needed=is_needed)
        elif rooms:
            rooms.pop(size % len(rooms)).release()
        sizes = [room.size for room in rooms if room.size]
        assert memory.used == sum(sizes)
        assert memory.used <= limit or len(sizes) == 1
    for room in rooms:
        room.release()
    assert (memory.used, memory.waiting, memory.is_short) == (0, 0, False)
