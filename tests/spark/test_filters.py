"""What is planned from filters, against a look at every row: nothing that passes them is left out,
and what Spark does not look at again is met exactly."""

from __future__ import annotations

import base64
import operator
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.worker.data_source_pushdown_filters import deserializeFilter

from penstock.model.limits import INT64_MAX
from penstock.spark.filters import Bounds, push_filters

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARISONS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, EqualNullSafe)


class Row(NamedTuple):
    stream: str
    sequence_number: int
    ingest_millis: int

    def column(self, name: str) -> Any:
        if name == "ingest_time":
            return EPOCH + timedelta(milliseconds=self.ingest_millis)
        return b"x" if name == "payload" else getattr(self, name)


# What each kind asks of the value in the column and its own.
MEANINGS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, among: value in among,
    IsNull: lambda value, _: value is None,
    IsNotNull: lambda value, _: value is not None,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}


def passes(row: Row, item: Any) -> bool:
    """Whether Spark would keep the row."""
    if isinstance(item, Not):
        return not passes(row, item.child)
    value = row.column(item.attribute[0])
    return MEANINGS[type(item)](value, getattr(item, "value", None))


def is_planned(row: Row, bounds: Bounds) -> bool:
    return (
        (bounds.streams is None or row.stream in bounds.streams)
        and bounds.first <= row.sequence_number < bounds.end
        and bounds.oldest_time <= row.ingest_millis <= bounds.newest_time
    )


# Rows and values from so few that they meet often; times around 1970, which is nothing special.
ROWS = [
    Row(stream, number, millis)
    for stream in ("a", "ab", "b")
    for number in range(5)
    for millis in range(-2, 3)
]
NUMBERS = st.integers(-2, 6)
NAMES = st.sampled_from(["a", "ab", "b", "c"])
TIMES = st.builds(
    lambda micros, zone: (EPOCH + timedelta(microseconds=micros)).astimezone(zone),
    st.sampled_from([m * 1000 + d for m in range(-3, 4) for d in (-1, 0, 1, 500)]),
    st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=8))]),
)


def filters_on(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    attribute = st.just((column,))
    plain: st.SearchStrategy[Filter] = st.one_of(
        *(st.builds(kind, attribute, values) for kind in COMPARISONS),
        st.builds(In, attribute, st.lists(values, max_size=3).map(tuple)),
        st.builds(IsNotNull, attribute),
        st.builds(IsNull, attribute),
    )
    return plain | st.builds(Not, plain)


TEXT_FILTERS: st.SearchStrategy[Filter] = st.one_of(
    *(
        st.builds(kind, st.just(("stream",)), NAMES)
        for kind in (StringStartsWith, StringEndsWith, StringContains)
    )
)
FILTERS = st.lists(
    filters_on("sequence_number", NUMBERS)
    | filters_on("stream", NAMES)
    | filters_on("ingest_time", TIMES)
    | filters_on("payload", st.just(b"x"))
    | TEXT_FILTERS,
    max_size=4,
)


@given(FILTERS)
def test_what_is_planned_and_filtered_again_is_what_passes(filters: list[Filter]) -> None:
    bounds, remaining = push_filters(filters)
    for row in ROWS:
        wanted = all(passes(row, item) for item in filters)
        found = is_planned(row, bounds) and all(passes(row, item) for item in remaining)
        assert found == wanted, row


@given(FILTERS)
def test_filters_come_back_as_they_are_and_in_order(filters: list[Filter]) -> None:
    _, remaining = push_filters(filters)
    left = iter(filters)
    # Spark knows them by identity.
    assert all(any(item is other for other in left) for item in remaining)


@pytest.mark.parametrize(
    ("item", "first", "end"),
    [
        (EqualTo(("sequence_number",), 5), 5, 6),
        (GreaterThan(("sequence_number",), 5), 6, INT64_MAX),
        (GreaterThanOrEqual(("sequence_number",), 5), 5, INT64_MAX),
        (LessThan(("sequence_number",), 5), 0, 5),
        (LessThanOrEqual(("sequence_number",), 5), 0, 6),
        (GreaterThan(("sequence_number",), -(2**63)), 0, INT64_MAX),
        (LessThanOrEqual(("sequence_number",), INT64_MAX), 0, INT64_MAX),
    ],
)
def test_numbers_are_met_exactly(item: Filter, first: int, end: int) -> None:
    assert push_filters([item]) == (Bounds(first=first, end=end), [])


def test_numbers_of_a_list_are_read_from_the_first_to_the_last() -> None:
    item = In(("sequence_number",), (9, 3, 5))
    assert push_filters([item]) == (Bounds(first=3, end=10), [item])


def test_streams_are_met_exactly() -> None:
    equal, among = EqualTo(("stream",), "a"), In(("stream",), ("a", "b"))
    assert push_filters([equal]) == (Bounds(streams=frozenset("a")), [])
    assert push_filters([among]) == (Bounds(streams=frozenset("ab")), [])
    assert push_filters([among, EqualTo(("stream",), "c")]) == (Bounds(streams=frozenset()), [])


def test_no_column_is_ever_null() -> None:
    columns = ("stream", "sequence_number", "ingest_time", "payload")
    assert push_filters([IsNotNull((column,)) for column in columns]) == (Bounds(), [])


@pytest.mark.parametrize(
    "item",
    [
        IsNull(("stream",)),
        Not(EqualTo(("sequence_number",), 5)),
        EqualTo(("payload",), b"x"),
        EqualTo(("sequence_number", "inner"), 5),
        EqualTo(("sequence_number",), None),
        EqualTo(("sequence_number",), 5.0),
        EqualTo(("ingest_time",), None),
        EqualTo(("another",), 5),
        IsNotNull(("another",)),
        In(("stream",), ("a", None)),
        In(("sequence_number",), (1, None)),
        In(("ingest_time",), (EPOCH,)),
        Filter(),
    ],
)
def test_what_says_nothing_about_messages_is_left_to_spark(item: Filter) -> None:
    assert push_filters([item]) == (Bounds(), [item])


def millis(filters: Sequence[Filter]) -> tuple[int, int]:
    bounds, remaining = push_filters(filters)
    assert remaining == list(filters)
    return bounds.oldest_time, bounds.newest_time


@pytest.mark.parametrize("second", [0, 1_700_000_000, -1_700_000_000])
def test_times_between_two_milliseconds_belong_to_neither(second: int) -> None:
    whole = EPOCH + timedelta(seconds=second, milliseconds=7)
    between = whole + timedelta(microseconds=1)
    at = second * 1000 + 7
    column = ("ingest_time",)
    assert millis([GreaterThan(column, whole)]) == (at + 1, INT64_MAX)
    assert millis([GreaterThan(column, between)]) == (at + 1, INT64_MAX)
    assert millis([GreaterThanOrEqual(column, whole)]) == (at, INT64_MAX)
    assert millis([GreaterThanOrEqual(column, between)]) == (at + 1, INT64_MAX)
    assert millis([LessThan(column, whole)]) == (-INT64_MAX, at - 1)
    assert millis([LessThan(column, between)]) == (-INT64_MAX, at)
    assert millis([LessThanOrEqual(column, whole)]) == (-INT64_MAX, at)
    assert millis([LessThanOrEqual(column, between)]) == (-INT64_MAX, at)
    assert millis([EqualTo(column, whole)]) == (at, at)
    assert millis([EqualTo(column, between)]) == (at + 1, at)


@pytest.mark.parametrize("micros", [1_700_000_000_123_456, 0, -1, -62_135_596_800_000_000])
def test_times_are_understood_as_spark_hands_them_over(micros: int) -> None:
    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    item = deserializeFilter(
        {
            "name": "GreaterThanOrEqual",
            "columnPath": ["ingest_time"],
            # A variant that is a timestamp, and the metadata of one without keys.
            "value": {
                "value": encoded(bytes([12 << 2]) + micros.to_bytes(8, "little", signed=True)),
                "metadata": encoded(b"\x01\x00\x00"),
            },
            "isNegated": False,
        }
    )
    assert millis([item]) == (-(-micros // 1000), INT64_MAX)


def test_a_time_without_a_zone_is_a_local_one() -> None:
    moment = datetime(2024, 1, 1, 12)  # noqa: DTZ001 - that is what is tested
    item = GreaterThanOrEqual(("ingest_time",), moment)
    assert millis([item]) == (round(moment.timestamp() * 1000), INT64_MAX)
