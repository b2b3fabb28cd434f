"""What goes beyond the limits of single fields."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.rules import check_definition, check_update
from penstock.errors import InvalidRequestException, UpdateNotAllowedException
from penstock.model import MessageStreamDefinition, from_wire

MIN_PART = 5_242_880


def definition(**fields: Any) -> MessageStreamDefinition:
    return from_wire({"name": "s", "strategyOnFull": 0, **fields}, MessageStreamDefinition)


def s3(**fields: Any) -> MessageStreamDefinition:
    return definition(exportDefinition={"s3TaskExecutor": [{"identifier": "e", **fields}]})


def kinesis(start: int | None = None, identifier: str = "k") -> MessageStreamDefinition:
    export = {"identifier": identifier, "kinesisStreamName": "n", "startSequenceNumber": start}
    return definition(exportDefinition={"kinesis": [export]})


def refusal(check: Any, *arguments: Any) -> str:
    with pytest.raises(InvalidRequestException) as caught:
        check(*arguments)
    return caught.value.message


# By itself


def test_an_ordinary_definition_is_allowed() -> None:
    check_definition(definition(), {}, MIN_PART)
    check_definition(kinesis(), {}, MIN_PART)
    check_definition(s3(), {}, MIN_PART)


def test_an_identifier_is_used_once() -> None:
    twice = {"kinesis": [{"identifier": "e", "kinesisStreamName": "n"}]}
    twice["http"] = [{"identifier": "e", "uri": "u"}]

    message = refusal(check_definition, definition(exportDefinition=twice), {}, MIN_PART)

    assert "'e' is used twice" in message


def test_a_status_stream_exists_before_it_is_referred_to() -> None:
    wanted = s3(statusConfig={"statusStreamName": "status"})

    check_definition(wanted, {"status": definition()}, MIN_PART)
    assert "status stream 'status' does not exist" in refusal(
        check_definition, wanted, {"other": definition()}, MIN_PART
    )


def status_streams(**names: str) -> dict[str, MessageStreamDefinition]:
    """Streams, each with the one that its statuses go to; none if that is empty."""
    return {
        name: s3(statusConfig={"statusStreamName": status_stream} if status_stream else {})
        for name, status_stream in names.items()
    }


def test_a_status_stream_is_another_stream() -> None:
    wanted = s3(statusConfig={"statusStreamName": "s"})
    for existing in ({}, {"s": definition()}):
        message = refusal(check_definition, wanted, existing, MIN_PART)
        assert "the status stream is the stream itself" in message
        assert "'e'" in message


@pytest.mark.parametrize(
    "existing",
    [status_streams(a="s"), status_streams(a="b", b="s"), status_streams(a="b", b="s", s="a")],
)
def test_statuses_do_not_come_back(existing: dict[str, MessageStreamDefinition]) -> None:
    wanted = s3(statusConfig={"statusStreamName": "a"})
    message = refusal(check_definition, wanted, existing, MIN_PART)
    assert "the status stream 'a' has an export whose statuses come back to 's'" in message


@pytest.mark.parametrize(
    "existing",
    [
        status_streams(a="b", b=""),
        # Somebody else's circle is none of its business, and must not take for ever.
        status_streams(a="b", b="c", c="b"),
        # What it was until now does not count.
        status_streams(a="b", b="", s="b"),
        status_streams(a="gone"),
    ],
)
def test_statuses_may_go_on_to_other_streams(
    existing: dict[str, MessageStreamDefinition],
) -> None:
    check_definition(s3(statusConfig={"statusStreamName": "a"}), existing, MIN_PART)


def test_a_status_stream_need_not_be_named() -> None:
    check_definition(s3(statusConfig={"statusLevel": 1}), {}, MIN_PART)


def test_uploads_are_not_split_below_the_servers_smallest_part() -> None:
    wanted = s3(sizeThresholdForMultipartUploadBytes=6_000_000)

    check_definition(wanted, {}, 6_000_000)
    message = refusal(check_definition, wanted, {}, 6_000_001)
    assert "sizeThresholdForMultipartUploadBytes is 6000000" in message
    assert "6000001" in message


# In place of another


def test_an_update_that_changes_nothing_is_allowed() -> None:
    check_update(definition(), definition(), 0, -1)


def test_persistence_never_changes() -> None:
    with pytest.raises(UpdateNotAllowedException) as caught:
        check_update(definition(), definition(persistence=1), 0, -1)

    assert caught.value.message == (
        "definition.persistence is Memory: it cannot change, and the stream was created with File"
    )


def test_a_stream_does_not_become_smaller_than_what_it_holds() -> None:
    wanted = definition(maxSize=4096, streamSegmentSize=2048)

    check_update(definition(), wanted, 4096, 10)
    message = refusal(check_update, definition(), wanted, 4097, 10)
    assert message.startswith("definition.maxSize is 4096: ")
    assert "4097" in message


def test_a_segment_does_not_become_larger_than_the_stream() -> None:
    message = refusal(check_update, definition(), definition(maxSize=4096), 0, -1)

    assert message.startswith("definition.maxSize is 4096: ")


def test_sizes_that_stay_as_they_were_are_not_looked_at_again() -> None:
    odd = definition(maxSize=1024, streamSegmentSize=2048)

    check_update(odd, definition(maxSize=1024, streamSegmentSize=2048, flushOnWrite=True), 0, -1)


@pytest.mark.parametrize(("start", "newest"), [(0, -1), (0, 5), (4, 5), (None, -1)])
def test_an_export_may_start_before_the_newest_message(start: int | None, newest: int) -> None:
    check_update(definition(), kinesis(start), 0, newest)


@pytest.mark.parametrize(("start", "newest"), [(1, -1), (1, 0), (5, 5), (6, 5)])
def test_an_export_does_not_start_behind_it(start: int, newest: int) -> None:
    message = refusal(check_update, definition(), kinesis(start), 0, newest)

    assert f"startSequenceNumber is {start}" in message
    assert str(newest) in message


def test_a_start_that_is_in_force_stays() -> None:
    check_update(kinesis(100), kinesis(100), 0, 5)
    assert refusal(check_update, kinesis(100), kinesis(101), 0, 5)
    assert refusal(check_update, kinesis(100), kinesis(100, identifier="other"), 0, 5)


def test_an_s3_export_has_no_start() -> None:
    check_update(definition(), s3(), 0, -1)
