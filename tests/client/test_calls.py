"""What a client asks for as the server understands it, and what it makes of the answers."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from itertools import accumulate, chain, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import calls
from penstock.client.calls import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, Call
from penstock.client.protocol import ClientProtocol
from penstock.errors import (
    EXCEPTION_OF,
    ClientException,
    ResponseStatusCode,
    StreamManagerException,
    UnknownOperationException,
    ValidationException,
)
from penstock.model import (
    ExportDefinition,
    KinesisConfig,
    Message,
    MessageStreamDefinition,
    Persistence,
    ReadMessagesOptions,
    StrategyOnFull,
)
from penstock.wire.codec import decode_request
from penstock.wire.frames import HEADER
from penstock.wire.operations import RESPONSE_TO, Operation
from penstock.wire.requests import (
    EXTENDED_REQUESTS,
    AppendMessageRequest,
    AppendMessagesRequest,
    CreateMessageStreamRequest,
    DeleteMessageStreamRequest,
    DescribeMessageStreamRequest,
    ListStreamsRequest,
    ReadColumnsRequest,
    ReadMessagesRequest,
    Request,
    StatisticsRequest,
    UpdateMessageStreamRequest,
)
from tests.support import MEBIBYTE

FRAME_BYTES = 1 << 30
NAMED = {"request_id": "00000001"}

DEFINITION = MessageStreamDefinition(
    "some stream",
    max_size=4096,
    strategy_on_full=StrategyOnFull.OverwriteOldestData,
    persistence=Persistence.Memory,
    export_definition=ExportDefinition(kinesis=[KinesisConfig("k", "stream", batch_size=5)]),
)


def asked(call: Call[Any]) -> Request:
    """The request as it arrives at a server."""
    _, frame = ClientProtocol().request(call)
    return decode_request(frame[4], frame[HEADER.size :], EXTENDED_REQUESTS)


def answered(call: Call[Any], **response: Any) -> Any:
    """What the call makes of an answer; one that says nothing of its status is a success."""
    success = {"requestId": "00000001", "status": 0, "errorMessage": ""}
    return call.resolve(RESPONSE_TO[call.operation], {**success, **response})


# Requests


@pytest.mark.parametrize(
    ("call", "request_"),
    [
        (
            calls.create_message_stream(DEFINITION),
            CreateMessageStreamRequest(**NAMED, definition=DEFINITION),
        ),
        (
            calls.update_message_stream(DEFINITION),
            UpdateMessageStreamRequest(**NAMED, definition=DEFINITION),
        ),
        (calls.delete_message_stream("s"), DeleteMessageStreamRequest(**NAMED, name="s")),
        (calls.describe_message_stream("s"), DescribeMessageStreamRequest(**NAMED, name="s")),
        (calls.list_streams(), ListStreamsRequest(**NAMED)),
        (calls.statistics(), StatisticsRequest(**NAMED)),
        (
            calls.append_message("s", b"\x00\xff"),
            AppendMessageRequest(**NAMED, name="s", payload=b"\x00\xff"),
        ),
        (calls.read_messages("s", None, 60), ReadMessagesRequest(**NAMED, stream_name="s")),
        (
            calls.read_messages("s", ReadMessagesOptions(4, 1, 9, 60_000), 60),
            ReadMessagesRequest(
                **NAMED,
                stream_name="s",
                read_messages_options=ReadMessagesOptions(4, 1, 9, 60_000),
            ),
        ),
        (
            calls.read_messages_or_none("s", 4, 9, 500),
            ReadMessagesRequest(
                **NAMED, stream_name="s", read_messages_options=ReadMessagesOptions(4, 1, 9, 500)
            ),
        ),
        (
            calls.read_columns("s", 4, 2**63 - 1, 1024, 500),
            ReadColumnsRequest(
                **NAMED,
                name="s",
                first_sequence_number=4,
                end_sequence_number=2**63 - 1,
                max_bytes=1024,
                read_timeout_millis=500,
            ),
        ),
    ],
    ids=lambda value: value.operation.name if isinstance(value, Call) else "",
)
def test_a_request_arrives_as_it_was_meant(call: Call[Any], request_: Request) -> None:
    assert asked(call) == request_


def test_every_operation_of_the_server_can_be_asked_for() -> None:
    made = {
        calls.create_message_stream(DEFINITION),
        calls.update_message_stream(DEFINITION),
    } if False else {  # fmt: skip
        call.operation
        for call in (
            calls.create_message_stream(DEFINITION),
            calls.update_message_stream(DEFINITION),
            calls.delete_message_stream("s"),
            calls.describe_message_stream("s"),
            calls.list_streams(),
            calls.statistics(),
            calls.append_message("s", b"x"),
            calls.read_messages("s", None, 60),
            calls.read_columns("s", 0, 1, 1, 0),
            *next(calls.plan_appends("s", [b"x"], True, FRAME_BYTES)),
        )
    }
    assert made == set(EXTENDED_REQUESTS)
