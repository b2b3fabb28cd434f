"""IoT Analytics, without an AWS client: AWS has removed it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from penstock.sandbox.local_sandbox import Sandbox
from tests.sandbox.posting import Posted, post


def message(number: int, payload: bytes = b"{}") -> Any:
    return {"messageId": str(number), "payload": base64.b64encode(payload).decode()}


def put(sandbox: Sandbox, channel: str, *messages: Any) -> Posted:
    body = json.dumps({"channelName": channel, "messages": messages})
    return post(f"{sandbox.url}/messages/batch", body.encode())


def test_messages_are_stored_in_order(sandbox: Sandbox) -> None:
    posted = put(sandbox, "kept", message(1, b"one"), message(2, b"two"))

    assert posted.status == 200
    assert posted.answer == {"batchPutMessageErrorEntries": []}
    assert sandbox.payloads("iotanalytics", "kept") == [b"one", b"two"]
    assert [found["messageId"] for found in sandbox.records("iotanalytics", "kept")] == ["1", "2"]
    assert sandbox.calls("iotanalytics")[0]["operation"] == "BatchPutMessage"


def test_call_has_at_most_100_messages(sandbox: Sandbox) -> None:
    messages = [message(number) for number in range(101)]

    assert put(sandbox, "hundred", *messages[:100]).status == 200
    assert put(sandbox, "hundred", *messages).answer["__type"] == "InvalidRequestException"


@pytest.mark.parametrize(
    ("channel", "messages"),
    [
        ("a", []),
        ("a", [message(1), message(1)]),
        ("a", [{"messageId": "1", "payload": "not base64"}]),
        ("a", [{"payload": ""}]),
        ("not-a-channel", [message(1)]),
        ("__a", [message(1)]),
    ],
)
def test_malformed_call_fails_as_a_whole(
    sandbox: Sandbox, channel: str, messages: list[Any]
) -> None:
    posted = put(sandbox, channel, *messages)

    assert posted.status == 400
    assert posted.answer["__type"] == "InvalidRequestException"


def test_only_the_oversized_message_fails(sandbox: Sandbox) -> None:
    posted = put(sandbox, "large", message(1, bytes(128 * 1024 + 1)), message(2))

    (error,) = posted.answer["batchPutMessageErrorEntries"]
    assert (error["messageId"], error["errorCode"]) == ("1", "InvalidRequestException")
    assert len(sandbox.records("iotanalytics", "large")) == 1


def test_only_messages_refused_by_a_fault_fail(sandbox: Sandbox) -> None:
    sandbox.set_fault("iotanalytics", refuse_every=2, refuse_with="InternalFailureException")

    posted = put(sandbox, "refused", message(1), message(2), message(3))

    (error,) = posted.answer["batchPutMessageErrorEntries"]
    assert (error["messageId"], error["errorCode"]) == ("2", "InternalFailureException")
    assert len(sandbox.records("iotanalytics", "refused")) == 2


def test_fault_throttles_the_whole_call(sandbox: Sandbox) -> None:
    sandbox.set_fault("iotanalytics", name="throttled", throttle=True)

    posted = put(sandbox, "throttled", message(1))

    assert posted.status == 429
    assert posted.headers["x-amzn-ErrorType"] == "ThrottlingException"
    assert put(sandbox, "other", message(1)).status == 200
