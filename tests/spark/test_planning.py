"""Plans of pieces and tasks, which contain each message once and in order."""

from __future__ import annotations

import pickle
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.endpoint import EndpointOptions
from penstock.model.storage import Location, SegmentSummary
from penstock.spark.place import Place
from penstock.spark.planning import Piece, ReadTask, plan_pieces, plan_tasks
from penstock.spark.times import ALL_TIMES, TimeRange

MEBIBYTE = 1024 * 1024
PLACE = Place(EndpointOptions(), EndpointOptions(), "here", 1.0)


def segment(first: int, end: int, size: int, oldest: int = 0, newest: int = 0) -> SegmentSummary:
    return SegmentSummary(first, end, size, oldest, newest, 0, 0)


def location(segments: list[SegmentSummary], has_files: bool = True) -> Location:
    first, end = segments[0].first, segments[-1].end
    return Location("/root", "instance", has_files, first, end, end, segments)


def plan(
    segments: list[SegmentSummary], first: int, end: int, times: TimeRange = ALL_TIMES
) -> list[Piece]:
    return plan_pieces("s", "id", location(segments), first, end, times)


def slices(pieces: Iterable[Piece]) -> list[tuple[int, int]]:
    return [(piece.first, piece.end) for piece in pieces]


def numbers(pieces: Iterable[Piece]) -> list[tuple[str, int]]:
    return [(piece.stream, n) for piece in pieces for n in range(piece.first, piece.end)]


@st.composite
def logs(draw: st.DrawFn) -> list[SegmentSummary]:
    """Consecutive segments of a stream, including lost ones."""
    first = draw(st.integers(0, 1000))
    segments = []
    for count in draw(st.lists(st.integers(1, 50), min_size=1, max_size=8)):
        size = count * draw(st.integers(0, 3 * MEBIBYTE))
        oldest = draw(st.integers(0, 20))
        newest = oldest + draw(st.integers(0, 5))
        segments.append(segment(first, first + count, size, oldest, newest))
        first += count
    return segments


@settings(deadline=None)
@given(logs(), st.data())
def test_pieces_cover_exactly_the_requested_messages(
    segments: list[SegmentSummary], data: st.DataObject
) -> None:
    around = st.integers(segments[0].first - 5, segments[-1].end + 5)
    first, end = data.draw(around), data.draw(around)
    pieces = plan(segments, first, end)
    requested = range(max(first, segments[0].first), min(end, segments[-1].end))
    assert [number for _, number in numbers(pieces)] == list(requested)
    for piece in pieces:
        assert piece.segment in segments
        assert piece.segment.first <= piece.first < piece.end <= piece.segment.end


@settings(deadline=None)
@given(logs(), st.integers(-5, 30), st.integers(-5, 30))
def test_only_segments_of_other_times_are_skipped(
    segments: list[SegmentSummary], start: int, end: int
) -> None:
    times = TimeRange(start, end)
    pieces = plan(segments, 0, segments[-1].end, times)
    expected = [
        part
        for part in segments
        # The times of a lost segment are unknown.
        if part.size == 0 or (part.oldest_time < end and part.newest_time >= start)
    ]
    assert [piece.segment for piece in pieces] == expected
    assert all(piece.times == times for piece in pieces)


def test_memory_stream_has_no_root() -> None:
    in_memory = location([segment(0, 5, 10)], has_files=False)
    (piece,) = plan_pieces("s", "id", in_memory, 0, 5)
    assert (piece.stream, piece.stream_id, piece.root) == ("s", "id", None)
    (piece,) = plan([segment(0, 5, 10)], 0, 5)
    assert (piece.root, piece.instance) == ("/root", "instance")


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), logs()), max_size=4),
    st.integers(1, 200),
    st.integers(1, 64),
)
def test_each_message_is_in_one_task_and_in_order(
    streams: list[tuple[str, list[SegmentSummary]]], min_partitions: int, cores: int
) -> None:
    pieces = [
        piece
        for name, segments in streams
        for piece in plan_pieces(name, "id", location(segments), 0, 10_000)
    ]
    tasks = plan_tasks(PLACE, pieces, min_partitions, cores)
    assert [number for task in tasks for number in numbers(task.pieces)] == numbers(pieces)
    assert all(task.pieces and task.place == PLACE for task in tasks)
    assert all(piece.first < piece.end for task in tasks for piece in task.pieces)


def test_no_pieces_need_no_task() -> None:
    assert plan_tasks(PLACE, [], 5, 2) == []


def test_little_data_is_one_task() -> None:
    pieces = plan([segment(0, 10, 1000), segment(10, 20, MEBIBYTE)], 0, 20)
    (task,) = plan_tasks(PLACE, pieces, 1, cores=8)
    assert task.pieces == pieces


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
def test_much_data_is_the_same_number_of_tasks_for_each_core(cores: int) -> None:
    size = 16 * MEBIBYTE
    segments = [segment(n * 1000, (n + 1) * 1000, size) for n in range(96)]
    tasks = plan_tasks(PLACE, plan(segments, 0, 96_000), 1, cores)
    assert len(tasks) % cores == 0
    costs = [sum(piece.cost for piece in task.pieces) for task in tasks]
    assert max(costs) <= 256 * MEBIBYTE + size
    assert max(costs) <= 1.5 * min(costs)


def test_segments_that_fit_a_task_are_not_cut() -> None:
    segments = [segment(n * 1000, (n + 1) * 1000, 16 * MEBIBYTE) for n in range(32)]
    tasks = plan_tasks(PLACE, plan(segments, 0, 32_000), 1, cores=3)
    assert len(tasks) == 3
    assert [piece.segment for task in tasks for piece in task.pieces] == segments


def test_large_segment_is_divided_between_cores() -> None:
    pieces = plan([segment(0, 1000, 1024 * MEBIBYTE)], 0, 1000)
    tasks = plan_tasks(PLACE, pieces, 1, cores=4)
    assert [slices(task.pieces) for task in tasks] == [
        [(first, first + 125)] for first in range(0, 1000, 125)
    ]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1000, 50_000), st.integers(1, 3000)), min_size=1, max_size=8),
    st.integers(1, 100),
    st.integers(1, 8),
)
def test_min_partitions_is_honored(
    sizes: list[tuple[int, int]], min_partitions: int, cores: int
) -> None:
    pieces = [
        piece
        for count, bytes_each in sizes
        for piece in plan([segment(0, count, count * bytes_each)], 0, count)
    ]
    assert len(plan_tasks(PLACE, pieces, min_partitions, cores)) >= min_partitions


def test_few_messages_are_divided_into_single_messages() -> None:
    tasks = plan_tasks(PLACE, plan([segment(0, 4, 400)], 0, 4), 4, 2)
    assert [slices(task.pieces) for task in tasks] == [[(0, 1)], [(1, 2)], [(2, 3)], [(3, 4)]]
    tasks = plan_tasks(PLACE, plan([segment(0, 4, 400)], 0, 4), 100, 2)
    assert len(tasks) == 4


def test_min_partitions_is_honored_with_small_segments() -> None:
    segments = [segment(n * 10, n * 10 + 10, 6000) for n in range(10)]
    tasks = plan_tasks(PLACE, plan(segments, 0, 100), 6, 2)
    assert len(tasks) >= 6


def test_lost_segment_costs_nothing() -> None:
    segments = [segment(0, 10, 1000), segment(10, 2**31, 0), segment(2**31, 2**31 + 10, 1000)]
    (task,) = plan_tasks(PLACE, plan(segments, 0, 2**32), 1, 8)
    assert slices(task.pieces) == [(0, 10), (10, 2**31), (2**31, 2**31 + 10)]


def test_lost_segment_alone_is_a_task() -> None:
    tasks = plan_tasks(PLACE, plan([segment(0, 10, 0)], 0, 10), 3, 2)
    assert [slices(task.pieces) for task in tasks] == [[(0, 10)]]


def test_task_can_be_pickled_and_shows_its_slices() -> None:
    pieces = plan([segment(0, 10, 1000), segment(10, 20, 1000)], 5, 15)
    task = pickle.loads(pickle.dumps(ReadTask(PLACE, pieces)))
    assert (task.place, task.pieces) == (PLACE, pieces)
    assert repr(task) == "<Task s [5, 10), s [10, 15)>"
