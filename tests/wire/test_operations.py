"""Operation numbers on the wire."""

from __future__ import annotations

from penstock.wire.operations import RESPONSE_TO, Operation
from penstock.wire.requests import EXTENDED_REQUESTS, HANDSHAKE


def test_operations_of_stream_manager_have_their_numbers() -> None:
    names = {number: Operation(number).name for number in range(18)}

    assert names == {
        0: "Unknown",
        1: "Connect",
        2: "CreateMessageStream",
        3: "DeleteMessageStream",
        4: "AppendMessage",
        5: "ReadMessages",
        6: "ConnectResponse",
        7: "CreateMessageStreamResponse",
        8: "DeleteMessageStreamResponse",
        9: "AppendMessageResponse",
        10: "ReadMessagesResponse",
        11: "ListStreams",
        12: "ListStreamsResponse",
        13: "DescribeMessageStream",
        14: "DescribeMessageStreamResponse",
        15: "UpdateMessageStream",
        16: "UpdateMessageStreamResponse",
        17: "UnknownOperationError",
    }


def test_every_request_has_the_response_of_its_name() -> None:
    assert set(RESPONSE_TO) == {*HANDSHAKE, *EXTENDED_REQUESTS}
    for request, response in RESPONSE_TO.items():
        assert response.name == f"{Operation(request).name}Response"


def test_extensions_use_numbers_from_64_on() -> None:
    assert all(number < 18 or number >= 64 for number in Operation)
