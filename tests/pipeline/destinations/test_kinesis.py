from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.model import KinesisConfig
from penstock.pipeline.delivery import DeliveryTotals
from penstock.pipeline.destinations import aws, kinesis
from penstock.pipeline.destinations.destination import DestinationSettings, Messages
from penstock.pipeline.destinations.kinesis import KinesisDestination
from penstock.sandbox.local_sandbox import Sandbox
from tests.pipeline.destinations.suite import (
    NO_PAUSE,
    KinesisHarness,
    deliver,
    make_export,
)
from tests.support import TIMEOUT_S

MEBIBYTE = 1024 * 1024


@pytest.fixture
def other_end(sandbox: Sandbox, tmp_path: Path) -> Iterator[KinesisHarness]:
    kinesis._shards.clear()
    yield KinesisHarness(sandbox, tmp_path)
    kinesis._shards.clear()


def open_stream(
    name: str, settings: DestinationSettings = NO_PAUSE, timeout: float = TIMEOUT_S
) -> KinesisDestination:
    config = KinesisConfig(identifier="e", kinesis_stream_name=name)
    return KinesisDestination(make_export(config, settings, timeout))


def of(*payloads: bytes) -> Messages:
    numbers = range(len(payloads))
    return Messages("turbine", 0, numbers, numbers, payloads)


def run(destination: KinesisDestination, messages: Messages) -> DeliveryTotals:
    return deliver(destination, messages)


def keys_of(other_end: KinesisHarness, choice: str, *payloads: bytes) -> list[str]:
    settings = DestinationSettings(kinesis_inter_call_delay_ms=0, kinesis_partition_key=choice)
    assert run(open_stream(other_end.name, settings), of(*payloads)).error == ""
    records = other_end.sandbox.records("kinesis", other_end.name)
    return [record["partitionKey"] for record in records]


def test_payloads_arrive_byte_for_byte(other_end: KinesisHarness) -> None:
    payloads = [bytes(range(256)), b"\0", b'"quotes" and \\', "ümlaut".encode(), b"x" * 100_000]
    assert run(open_stream(other_end.name), of(*payloads)).error == ""
    assert other_end.sandbox.payloads("kinesis", other_end.name) == payloads


def test_random_keys_are_all_different(other_end: KinesisHarness) -> None:
    keys = keys_of(other_end, "random", *[b"x"] * 100)
    assert len(set(keys)) == 100
    assert {len(key) for key in keys} == {32}


def test_the_name_of_the_stream_as_key(other_end: KinesisHarness) -> None:
    assert keys_of(other_end, "stream-name", b"x", b"y") == ["turbine", "turbine"]


def test_a_field_of_the_payload_as_key(other_end: KinesisHarness) -> None:
    values: Sequence[Any] = ["t-1", 7, 2.5, 'a "quote"', "ü", "l" * 300]
    payloads = [json.dumps({"at": {"id": value}}).encode() for value in values]
    expected = ["t-1", "7", "2.5", 'a "quote"', "ü", "l" * 256]
    assert keys_of(other_end, "field:at.id", *payloads) == expected


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"\xff",
        b"7",
        b"{}",
        b'{"id": ""}',
        b'{"id": null}',
        b'{"id": true}',
        b'{"id": {"id": 1}}',
        b"[" * 5000,
    ],
)
def test_where_there_is_no_such_field_the_key_is_random(
    other_end: KinesisHarness, payload: bytes
) -> None:
    (key,) = keys_of(other_end, "field:id", payload)
    assert len(key) == 32


def test_a_record_of_just_the_limit_arrives(other_end: KinesisHarness) -> None:
    fits, too_large = bytes(MEBIBYTE - 32), bytes(MEBIBYTE - 31)
    delivery = run(open_stream(other_end.name), of(fits, too_large, fits))
    assert [number for number, _ in delivery.skipped] == [1]
    assert delivery.exported_messages == 2


def test_large_records_arrive_where_they_may(sandbox: Sandbox) -> None:
    settings = DestinationSettings(kinesis_inter_call_delay_ms=0, kinesis_large_records=True)
    destination = open_stream("s", settings)
    messages = of(bytes(9 * MEBIBYTE), b"x", bytes(MEBIBYTE), bytes(10 * MEBIBYTE))
    assert destination.prepare(messages).message_count == 2
    call = destination.prepare(messages.pick(range(2, 4)))
    assert (call.message_count, list(call.numbers), list(call.skipped)) == (2, [2], [3])


def test_a_call_ends_before_the_message_that_makes_it_too_large(other_end: KinesisHarness) -> None:
    messages = of(*[bytes(MEBIBYTE - 100)] * 12)
    destination = open_stream(other_end.name)
    assert destination.prepare(messages).message_count == 5
    assert run(destination, messages).exported_messages == 12
    puts = [
        call for call in other_end.sandbox.calls("kinesis") if call["operation"] == "PutRecords"
    ]
    assert len(puts) == 3


def test_a_stream_that_is_not_there_is_said(
    other_end: KinesisHarness,
) -> None:
    other_end.sandbox.set_fault("kinesis", status=400, code="ResourceNotFoundException")
    delivery = run(open_stream(other_end.name), of(b"x"))
    assert "kinesis PutRecords: ResourceNotFoundException" in delivery.error
    assert delivery.skipped == []


@pytest.mark.parametrize("name", ["wind farm", "ä", "x" * 129, 'x"', "../x"])
def test_a_name_that_is_none_costs_no_message(sandbox: Sandbox, name: str) -> None:
    delivery = run(open_stream(name), of(b"x"))
    assert "kinesisStreamName is" in delivery.error
    assert delivery.skipped == []


def test_a_stream_may_be_named_by_its_arn(other_end: KinesisHarness) -> None:
    arn = f"arn:aws:kinesis:us-east-1:123456789012:stream/{other_end.name}"
    assert run(open_stream(arn), of(b"1")).error == ""
    assert other_end.arrived() == [1]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"{",
        b'{"FailedRecordCount": 1}',
        b'{"FailedRecordCount":1,"Records":[]}',
        b'{"FailedRecordCount":1,"Records":[{}]}',
    ],
)
def test_invalid_answer_settles_nothing(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr(aws, "call", lambda *_: body)
    delivery = run(open_stream("s"), of(b"x"))
    assert "kinesis PutRecords" in delivery.error
    assert delivery.settled_end == 0


# The pause between calls


def pause_of(other_end: KinesisHarness, timeout: float = TIMEOUT_S) -> float:
    destination = open_stream(other_end.name, DestinationSettings(), timeout)
    return destination.pause


def test_there_is_no_pause_where_the_shards_are_known(other_end: KinesisHarness) -> None:
    assert pause_of(other_end) == 0
    assert pause_of(other_end) == 0
    assert [call["operation"] for call in other_end.sandbox.calls("kinesis")] == ["ListShards"]


@pytest.mark.parametrize(
    "fault",
    [{"status": 400, "code": "AccessDeniedException"}, {"status": 500}, {"down": True}],
)
def test_there_is_one_where_they_are_not(other_end: KinesisHarness, fault: dict[str, Any]) -> None:
    other_end.sandbox.set_fault("kinesis", operation="ListShards", **fault)
    assert pause_of(other_end) == 1.0
    assert pause_of(other_end) == 1.0
    assert len(other_end.sandbox.calls("kinesis")) == 1


def test_shards_that_are_not_told_in_time_fail_no_export(other_end: KinesisHarness) -> None:
    other_end.sandbox.set_fault("kinesis", operation="ListShards", hang=True)
    assert pause_of(other_end, timeout=0.3) == 1.0
    # By now it is known that they are not told.
    settings = DestinationSettings(kinesis_inter_call_delay_ms=3_600_000)
    delivery = run(open_stream(other_end.name, settings), of(b"1"))
    assert delivery.error == ""
    assert delivery.settled_end == 1
    assert 0 < delivery.pause <= 3600


def test_without_a_delay_nobody_asks_for_shards(other_end: KinesisHarness) -> None:
    destination = open_stream(other_end.name)
    assert run(destination, of(b"1")).pause == 0
    assert [call["operation"] for call in other_end.sandbox.calls("kinesis")] == ["PutRecords"]
