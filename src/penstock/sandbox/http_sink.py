"""An HTTP endpoint that keeps what is posted to it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.sandbox.service import (
    Answer,
    Call,
    Request,
    ServiceError,
    ShelvingService,
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


class HttpSink(ShelvingService[Post]):
    name = "http"
    throttled = (429, "TooManyRequests")
    refusal = "TooManyRequests"

    def read(self, request: Request) -> Call:
        name = request.path.removeprefix(PREFIX)
        if request.method not in ("POST", "PUT") or not name:
            raise ServiceError(405, "MethodNotAllowed", f"POST or PUT to {PREFIX}NAME")
        return Call(request.method, (name,), (name,), lambda refused: self._keep(request, refused))

    def _keep(self, request: Request, refused: Mapping[int, str]) -> Answer:
        if refused:
            raise ServiceError(429, refused[0] or self.refusal, "a fault of the sandbox")
        post = Post(request.body, request.method, dict(request.headers), self.clock() * 1000)
        self.shelves.add(request.path.removeprefix(PREFIX), post, len(request.body))
        return json_answer({}, stored=1)
