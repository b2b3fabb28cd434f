"""IoT Analytics: messages put into channels.

AWS ended the service and removed its clients. This module follows the last published API model. The
first message for a channel creates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.sandbox.service import (
    RecordingService,
    ServiceCall,
    ServiceError,
    ServiceRequest,
    ServiceResponse,
    json_answer,
    read_json,
    unknown_operation,
)

_MAX_MESSAGES_PER_CALL = 100
_MAX_MESSAGE_BYTES = 128 * 1024
_INVALID = "InvalidRequestException"


class _PutMessage(msgspec.Struct, rename="camel"):
    message_id: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"\A\S+\Z")]
    payload: bytes


class _PutMessages(msgspec.Struct, rename="camel"):
    channel_name: Annotated[
        str, Meta(min_length=1, max_length=128, pattern=r"\A(?!_{2})[a-zA-Z0-9_]+\Z")
    ]
    messages: Annotated[list[_PutMessage], Meta(min_length=1, max_length=_MAX_MESSAGES_PER_CALL)]


class ChannelMessage(msgspec.Struct, rename="camel"):
    """A stored message. In JSON its data is base64."""

    data: bytes
    message_id: str
    # Arrival, in milliseconds since 1970.
    time: float


class Analytics(RecordingService[ChannelMessage]):
    name = "iotanalytics"
    throttled = (429, "ThrottlingException")
    refusal = "ThrottlingException"

    def read(self, request: ServiceRequest) -> ServiceCall:
        if (request.method, request.path) != ("POST", "/messages/batch"):
            raise unknown_operation(request)
        put = read_json(request.body, _PutMessages, _INVALID)
        ids = [message.message_id for message in put.messages]
        if len(set(ids)) < len(ids):
            raise ServiceError(400, _INVALID, "messageId: must be unique within a call")
        return ServiceCall(
            "BatchPutMessage",
            (put.channel_name,),
            (put.channel_name,) * len(put.messages),
            lambda refused: self._put(put, refused),
        )

    def _put(self, put: _PutMessages, refused: Mapping[int, str]) -> ServiceResponse:
        now = self.clock() * 1000
        errors = []
        for index, message in enumerate(put.messages):
            if index in refused:
                code, text = refused[index] or self.refusal, "injected fault"
            elif len(message.payload) > _MAX_MESSAGE_BYTES:
                code, text = _INVALID, f"payload: must have at most {_MAX_MESSAGE_BYTES} bytes"
            else:
                stored = ChannelMessage(message.payload, message.message_id, now)
                self.buffers.add(put.channel_name, stored, len(message.payload))
                continue
            errors.append(
                {"messageId": message.message_id, "errorCode": code, "errorMessage": text}
            )
        return json_answer(
            {"batchPutMessageErrorEntries": errors},
            stored=len(put.messages) - len(errors),
            refused=len(errors),
        )
