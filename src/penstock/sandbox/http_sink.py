"""An HTTP endpoint that keeps what is posted to it."""

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


class Post(msgspec.Struct, rename="camel"):
    """A request as it is kept; in JSON its data is base64."""

    data: bytes
    method: str
    headers: dict[str, str]
    # When it came, in milliseconds since 1970.
    time: float


class HttpSink(RecordingService[Post]):
    name = "http"
    throttled = (429, "TooManyRequests")
    refusal = "TooManyRequests"

    def read(self, request: ServiceRequest) -> ServiceCall:
        name = request.path.removeprefix(PREFIX)
        if request.method not in ("POST", "PUT") or not name:
            raise ServiceError(405, "MethodNotAllowed", f"POST or PUT to {PREFIX}NAME")
        return ServiceCall(
            request.method, (name,), (name,), lambda refused: self._keep(request, refused)
        )

    def _keep(self, request: ServiceRequest, refused: Mapping[int, str]) -> ServiceResponse:
        if refused:
            raise ServiceError(429, refused[0] or self.refusal, "a fault of the sandbox")
        post = Post(request.body, request.method, dict(request.headers), self.clock() * 1000)
        self.buffers.add(request.path.removeprefix(PREFIX), post, len(request.body))
        return json_answer({}, stored=1)
