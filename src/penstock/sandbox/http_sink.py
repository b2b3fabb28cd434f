"""An HTTP endpoint that stores the requests it receives."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.sandbox.service import (
    RecordingService,
    ServiceCall,
    ServiceError,
    ServiceRequest,
    ServiceResponse,
    json_answer,
)

PREFIX = "/_sandbox/http/"


class PostedRequest(msgspec.Struct, rename="camel"):
    """A stored request. In JSON its data is base64."""

    data: bytes
    method: str
    headers: dict[str, str]
    # Arrival, in milliseconds since 1970.
    time: float


class HttpSink(RecordingService[PostedRequest]):
    name = "http"
    throttled = (429, "TooManyRequests")
    refusal = "TooManyRequests"

    def read(self, request: ServiceRequest) -> ServiceCall:
        name = request.path.removeprefix(PREFIX)
        if request.method not in ("POST", "PUT") or not name:
            raise ServiceError(405, "MethodNotAllowed", f"use POST or PUT with {PREFIX}NAME")
        return ServiceCall(
            request.method, (name,), (name,), lambda refused: self._store(request, refused)
        )

    def _store(self, request: ServiceRequest, refused: Mapping[int, str]) -> ServiceResponse:
        if refused:
            raise ServiceError(429, refused[0] or self.refusal, "injected fault")
        post = PostedRequest(
            request.body, request.method, dict(request.headers), self.clock() * 1000
        )
        self.buffers.add(request.path.removeprefix(PREFIX), post, len(request.body))
        return json_answer({}, stored=1)
