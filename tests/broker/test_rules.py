"""Rules for definitions beyond the limits of single fields."""

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


# New definitions


def test_valid_definition_is_accepted() -> None:
    check_definition(definition(), {}, MIN_PART)
    check_definition(kinesis(), {}, MIN_PART)
    check_definition(s3(), {}, MIN_PART)


def test_duplicate_identifier_is_rejected() -> None:
    twice = {"kinesis": [{"identifier": "e", "kinesisStreamName": "n"}]}
    twice["http"] = [{"identifier": "e", "uri": "u"}]

    message = refusal(check_definition, definition(exportDefinition=twice), {}, MIN_PART)

    assert "'e' is used twice" in message


def test_unknown_status_stream_is_rejected() -> None:
    wanted = s3(statusConfig={"statusStreamName": "status"})

    check_definition(wanted, {"status": definition()}, MIN_PART)
    assert "status stream 'status' does not exist" in refusal(
        check_definition, wanted, {"other": definition()}, MIN_PART
    )


def status_streams(**names: str) -> dict[str, MessageStreamDefinition]:
    """Definitions of streams, each with its status stream; an empty name is none."""
    return {
        name: s3(statusConfig={"statusStreamName": status_stream} if status_stream else {})
        for name, status_stream in names.items()
    }


def test_stream_cannot_be_its_own_status_stream() -> None:
    wanted = s3(statusConfig={"statusStreamName": "s"})
    for existing in ({}, {"s": definition()}):
        message = refusal(check_definition, wanted, existing, MIN_PART)
        assert "the status stream is the stream itself" in message
        assert "'e'" in message


@pytest.mark.parametrize(
    "existing",
    [status_streams(a="s"), status_streams(a="b", b="s"), status_streams(a="b", b="s", s="a")],
)
def test_cycle_of_status_streams_is_rejected(existing: dict[str, MessageStreamDefinition]) -> None:
    wanted = s3(statusConfig={"statusStreamName": "a"})
    message = refusal(check_definition, wanted, existing, MIN_PART)
    assert "the status streams of 'a' lead back to 's'" in message


@pytest.mark.parametrize(
    "existing",
    [
        status_streams(a="b", b=""),
        # A cycle of other streams is accepted, and does not loop.
        status_streams(a="b", b="c", c="b"),
        # The old definition of the stream does not count.
        status_streams(a="b", b="", s="b"),
        status_streams(a="gone"),
    ],
)
def test_chain_of_status_streams_is_accepted(
    existing: dict[str, MessageStreamDefinition],
) -> None:
    check_definition(s3(statusConfig={"statusStreamName": "a"}), existing, MIN_PART)


def test_status_config_without_a_stream_is_accepted() -> None:
    check_definition(s3(statusConfig={"statusLevel": 1}), {}, MIN_PART)


def test_multipart_threshold_below_the_min_part_size_is_rejected() -> None:
    wanted = s3(sizeThresholdForMultipartUploadBytes=6_000_000)

    check_definition(wanted, {}, 6_000_000)
    message = refusal(check_definition, wanted, {}, 6_000_001)
    assert "sizeThresholdForMultipartUploadBytes is 6000000" in message
    assert "6000001" in message


# Updates


def test_update_without_changes_is_accepted() -> None:
    check_update(definition(), definition(), 0, -1)


def test_update_rejects_another_persistence() -> None:
    with pytest.raises(UpdateNotAllowedException) as caught:
        check_update(definition(), definition(persistence=1), 0, -1)

    assert caught.value.message == (
        "definition.persistence is Memory: it cannot change, and the stream was created with File"
    )


def test_update_rejects_max_size_below_the_current_size() -> None:
    wanted = definition(maxSize=4096, streamSegmentSize=2048)

    check_update(definition(), wanted, 4096, 10)
    message = refusal(check_update, definition(), wanted, 4097, 10)
    assert message.startswith("definition.maxSize is 4096: ")
    assert "4097" in message


def test_update_rejects_segments_larger_than_the_stream() -> None:
    message = refusal(check_update, definition(), definition(maxSize=4096), 0, -1)

    assert message.startswith("definition.maxSize is 4096: ")


def test_update_does_not_check_unchanged_sizes() -> None:
    odd = definition(maxSize=1024, streamSegmentSize=2048)

    check_update(odd, definition(maxSize=1024, streamSegmentSize=2048, flushOnWrite=True), 0, -1)


@pytest.mark.parametrize(("start", "newest"), [(0, -1), (0, 5), (4, 5), (None, -1)])
def test_update_accepts_a_start_before_the_newest_message(start: int | None, newest: int) -> None:
    check_update(definition(), kinesis(start), 0, newest)


@pytest.mark.parametrize(("start", "newest"), [(1, -1), (1, 0), (5, 5), (6, 5)])
def test_update_rejects_a_start_at_or_behind_the_newest_message(start: int, newest: int) -> None:
    message = refusal(check_update, definition(), kinesis(start), 0, newest)

    assert f"startSequenceNumber is {start}" in message
    assert str(newest) in message


def test_update_accepts_an_unchanged_start() -> None:
    check_update(kinesis(100), kinesis(100), 0, 5)
    assert refusal(check_update, kinesis(100), kinesis(101), 0, 5)
    assert refusal(check_update, kinesis(100), kinesis(100, identifier="other"), 0, 5)


def test_update_ignores_the_start_of_s3_exports() -> None:
    check_update(definition(), s3(), 0, -1)
