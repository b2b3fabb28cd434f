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
def harness(sandbox: Sandbox, tmp_path: Path) -> Iterator[KinesisHarness]:
    kinesis._shards.clear()
    yield KinesisHarness(sandbox, tmp_path)
    kinesis._shards.clear()


def open_stream(
    name: str, settings: DestinationSettings = NO_PAUSE, timeout: float = TIMEOUT_S
) -> KinesisDestination:
    config = KinesisConfig(identifier="e", kinesis_stream_name=name)
    return KinesisDestination(make_export(config, settings, timeout))


def make_messages(*payloads: bytes) -> Messages:
    numbers = range(len(payloads))
    return Messages("turbine", 0, numbers, numbers, payloads)


def run(destination: KinesisDestination, messages: Messages) -> DeliveryTotals:
    return deliver(destination, messages)


def keys_of(harness: KinesisHarness, choice: str, *payloads: bytes) -> list[str]:
    settings = DestinationSettings(kinesis_inter_call_delay_ms=0, kinesis_partition_key=choice)
    assert run(open_stream(harness.name, settings), make_messages(*payloads)).error == ""
    records = harness.sandbox.records("kinesis", harness.name)
    return [record["partitionKey"] for record in records]


def test_payloads_arrive_byte_for_byte(harness: KinesisHarness) -> None:
    payloads = [bytes(range(256)), b"\0", b'"quotes" and \\', "ümlaut".encode(), b"x" * 100_000]
    assert run(open_stream(harness.name), make_messages(*payloads)).error == ""
    assert harness.sandbox.payloads("kinesis", harness.name) == payloads


def test_random_keys_are_all_different(harness: KinesisHarness) -> None:
    keys = keys_of(harness, "random", *[b"x"] * 100)
    assert len(set(keys)) == 100
    assert {len(key) for key in keys} == {32}


def test_key_may_be_the_stream_name(harness: KinesisHarness) -> None:
    assert keys_of(harness, "stream-name", b"x", b"y") == ["turbine", "turbine"]


def test_key_may_be_a_field_of_the_payload(harness: KinesisHarness) -> None:
    values: Sequence[Any] = ["t-1", 7, 2.5, 'a "quote"', "ü", "l" * 300]
    payloads = [json.dumps({"at": {"id": value}}).encode() for value in values]
    expected = ["t-1", "7", "2.5", 'a "quote"', "ü", "l" * 256]
    assert keys_of(harness, "field:at.id", *payloads) == expected


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
def test_key_is_random_without_the_field(harness: KinesisHarness, payload: bytes) -> None:
    (key,) = keys_of(harness, "field:id", payload)
    assert len(key) == 32


def test_record_of_the_max_size_arrives(harness: KinesisHarness) -> None:
    fits, too_large = bytes(MEBIBYTE - 32), bytes(MEBIBYTE - 31)
    delivery = run(open_stream(harness.name), make_messages(fits, too_large, fits))
    assert [number for number, _ in delivery.skipped] == [1]
    assert delivery.exported_messages == 2


def test_large_records_setting_raises_the_limits(sandbox: Sandbox) -> None:
    settings = DestinationSettings(kinesis_inter_call_delay_ms=0, kinesis_large_records=True)
    destination = open_stream("s", settings)
    messages = make_messages(bytes(9 * MEBIBYTE), b"x", bytes(MEBIBYTE), bytes(10 * MEBIBYTE))
    assert destination.prepare(messages).message_count == 2
    call = destination.prepare(messages.pick(range(2, 4)))
    assert (call.message_count, list(call.numbers), list(call.skipped)) == (2, [2], [3])


def test_call_ends_before_the_message_that_exceeds_its_max_size(harness: KinesisHarness) -> None:
    messages = make_messages(*[bytes(MEBIBYTE - 100)] * 12)
    destination = open_stream(harness.name)
    assert destination.prepare(messages).message_count == 5
    assert run(destination, messages).exported_messages == 12
    puts = [call for call in harness.sandbox.calls("kinesis") if call["operation"] == "PutRecords"]
    assert len(puts) == 3


def test_missing_stream_is_an_error_and_skips_no_message(
    harness: KinesisHarness,
) -> None:
    harness.sandbox.set_fault("kinesis", status=400, code="ResourceNotFoundException")
    delivery = run(open_stream(harness.name), make_messages(b"x"))
    assert "kinesis PutRecords: ResourceNotFoundException" in delivery.error
    assert delivery.skipped == []


@pytest.mark.parametrize("name", ["wind farm", "ä", "x" * 129, 'x"', "../x"])
def test_invalid_stream_name_is_an_error_and_skips_no_message(sandbox: Sandbox, name: str) -> None:
    delivery = run(open_stream(name), make_messages(b"x"))
    assert "kinesisStreamName is" in delivery.error
    assert delivery.skipped == []


def test_stream_may_be_named_by_its_arn(harness: KinesisHarness) -> None:
    arn = f"arn:aws:kinesis:us-east-1:123456789012:stream/{harness.name}"
    assert run(open_stream(arn), make_messages(b"1")).error == ""
    assert harness.arrived() == [1]


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
def test_no_message_counts_as_exported_after_an_invalid_answer(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr(aws, "call", lambda *_: body)
    delivery = run(open_stream("s"), make_messages(b"x"))
    assert "kinesis PutRecords" in delivery.error
    assert delivery.settled_end == 0


# The pause between calls


def pause_of(harness: KinesisHarness, timeout: float = TIMEOUT_S) -> float:
    destination = open_stream(harness.name, DestinationSettings(), timeout)
    return destination.pause


def test_there_is_no_pause_if_shards_can_be_listed(harness: KinesisHarness) -> None:
    assert pause_of(harness) == 0
    assert pause_of(harness) == 0
    assert [call["operation"] for call in harness.sandbox.calls("kinesis")] == ["ListShards"]


@pytest.mark.parametrize(
    "fault",
    [{"status": 400, "code": "AccessDeniedException"}, {"status": 500}, {"down": True}],
)
def test_there_is_a_pause_if_shards_cannot_be_listed(
    harness: KinesisHarness, fault: dict[str, Any]
) -> None:
    harness.sandbox.set_fault("kinesis", operation="ListShards", **fault)
    assert pause_of(harness) == 1.0
    assert pause_of(harness) == 1.0
    assert len(harness.sandbox.calls("kinesis")) == 1


def test_timeout_of_list_shards_fails_no_export(harness: KinesisHarness) -> None:
    harness.sandbox.set_fault("kinesis", operation="ListShards", hang=True)
    assert pause_of(harness, timeout=0.3) == 1.0
    # The failure of ListShards is cached.
    settings = DestinationSettings(kinesis_inter_call_delay_ms=3_600_000)
    delivery = run(open_stream(harness.name, settings), make_messages(b"1"))
    assert delivery.error == ""
    assert delivery.settled_end == 1
    assert 0 < delivery.pause <= 3600


def test_shards_are_not_listed_without_a_delay(harness: KinesisHarness) -> None:
    destination = open_stream(harness.name)
    assert run(destination, make_messages(b"1")).pause == 0
    assert [call["operation"] for call in harness.sandbox.calls("kinesis")] == ["PutRecords"]
