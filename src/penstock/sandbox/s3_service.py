"""S3, implemented by moto. Only this module imports moto.

moto stores buckets per process, so all sandboxes of a process share them.
"""

from __future__ import annotations

import importlib.util
import io
import re
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

import msgspec

from penstock.sandbox.service import (
    RecordingService,
    ServiceCall,
    ServiceError,
    ServiceRequest,
    ServiceResponse,
)

if TYPE_CHECKING:
    from flask import Flask

_ADDRESS = re.compile(r"[\d.]+|\[.*\]|localhost")

# Operations on a bucket and on an object, by method and query parameter.
_BUCKET_OPERATIONS = {
    ("PUT", ""): "CreateBucket",
    ("HEAD", ""): "HeadBucket",
    ("DELETE", ""): "DeleteBucket",
    ("GET", ""): "ListObjects",
    ("GET", "list-type"): "ListObjectsV2",
    ("GET", "uploads"): "ListMultipartUploads",
    ("GET", "location"): "GetBucketLocation",
    ("POST", "delete"): "DeleteObjects",
}
_OBJECT_OPERATIONS = {
    ("PUT", ""): "PutObject",
    ("PUT", "partNumber"): "UploadPart",
    ("POST", "uploads"): "CreateMultipartUpload",
    ("POST", "uploadId"): "CompleteMultipartUpload",
    ("DELETE", "uploadId"): "AbortMultipartUpload",
    ("GET", "uploadId"): "ListParts",
    ("GET", ""): "GetObject",
    ("HEAD", ""): "HeadObject",
    ("DELETE", ""): "DeleteObject",
}
# Operations with data, which count as one record.
_WRITES = {"PutObject", "UploadPart"}
# Operations that create an object.
_WRITE_OBJECTS = {"PutObject", "CopyObject", "CompleteMultipartUpload"}


class WrittenObject(msgspec.Struct, rename="camel"):
    """The name of an object that was written. S3 clients read its content."""

    key: str
    operation: str
    # Time of the write, in milliseconds since 1970.
    time: float


class S3(RecordingService[WrittenObject]):
    name = "s3"
    throttled = (503, "SlowDown")
    refusal = "SlowDown"

    def __init__(self, limit_bytes: int) -> None:
        """Raises ImportError if moto or a module that its server needs is not installed."""
        super().__init__(limit_bytes)
        for module in ("moto", "flask", "flask_cors"):
            if importlib.util.find_spec(module) is None:
                raise ImportError(f"no module {module}")
        self._moto: Flask | None = None
        self._lock = threading.Lock()

    def create_bucket(self, name: str) -> None:
        """Creates a bucket unless it exists. Raises ServiceError for an invalid name."""
        answer = self._request(ServiceRequest("PUT", f"/{name}", {"host": "127.0.0.1"}, b""))
        if answer.outcome not in ("ok", "BucketAlreadyOwnedByYou"):
            raise ServiceError(answer.status, answer.outcome, f"bucket {name!r}: {answer.outcome}")

    def read(self, request: ServiceRequest) -> ServiceCall:
        bucket, key = _locate(request)
        operation = _operation(request, bucket, key)
        is_write = operation in _WRITES

        def perform(refused: Mapping[int, str]) -> ServiceResponse:
            if refused:
                raise ServiceError(503, refused[0] or self.refusal, "injected fault")
            answer = self._request(request)
            if answer.outcome == "ok" and operation in _WRITE_OBJECTS:
                self.buffers.add(
                    bucket, WrittenObject(key, operation, self.clock() * 1000), len(key)
                )
            return answer._replace(stored=int(is_write and answer.outcome == "ok"))

        names = (bucket,) if bucket else ()
        return ServiceCall(operation, names, names if is_write else (), perform)

    def render(self, error: ServiceError) -> ServiceResponse:
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Error><Code>{escape(error.code)}</Code>"
            f"<Message>{escape(error.message)}</Message></Error>"
        )
        headers = {"Content-Type": "application/xml", **error.headers}
        return ServiceResponse(error.status, body.encode(), headers, outcome=error.code)

    def _load_moto(self) -> Flask:
        # Imported on first use: it is slow, and many sandboxes are used for Kinesis only.
        with self._lock:
            if self._moto is None:
                from moto.moto_server.werkzeug_app import create_backend_app

                self._moto = create_backend_app("s3")
            return self._moto

    def _request(self, request: ServiceRequest) -> ServiceResponse:
        from werkzeug.test import run_wsgi_app

        moto = self._load_moto()
        try:
            given = run_wsgi_app(moto, _environment(request), buffered=True)
        except KeyError as error:
            if error.args != (request.query.get("uploadId"),):
                raise ServiceError(500, "InternalError", f"moto: {error!r}") from None
            # moto raises KeyError for an unknown upload.
            raise ServiceError(404, "NoSuchUpload", "the upload does not exist") from None
        except Exception as error:  # noqa: BLE001 - moto raises any exception for unsupported requests
            raise ServiceError(500, "InternalError", f"moto: {error!r}") from None
        chunks, status_line, headers = given
        status, body = int(status_line[:3]), b"".join(chunks)
        outcome = "ok"
        if status >= 400:
            code = re.search(rb"<Code>(\w+)</Code>", body[:1000])
            outcome = code[1].decode() if code else str(status)
        return ServiceResponse(status, body, dict(headers), outcome=outcome)


def _locate(request: ServiceRequest) -> tuple[str, str]:
    """Returns bucket and key, from the path or with the bucket from the host name."""
    host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
    path = request.path.lstrip("/")
    if not _ADDRESS.fullmatch(host) and "." in host:
        return host.partition(".")[0], path
    bucket, _, key = path.partition("/")
    return bucket, key


def _operation(request: ServiceRequest, bucket: str, key: str) -> str:
    if not bucket:
        return "ListBuckets"
    if key and "x-amz-copy-source" in request.headers:
        return "CopyObject"
    operations = _OBJECT_OPERATIONS if key else _BUCKET_OPERATIONS
    query = request.query
    for (method, field), operation in operations.items():
        if method == request.method and field in query:
            return operation
    return operations.get((request.method, ""), request.method)


def _environment(request: ServiceRequest) -> dict[str, Any]:
    """Returns the WSGI environment of the request."""
    environment: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        # WSGI represents each byte of UTF-8 as a character.
        "PATH_INFO": request.path.encode().decode("latin-1"),
        "QUERY_STRING": request.target.partition("?")[2],
        "RAW_URI": request.target,
        "REQUEST_URI": request.target,
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(request.body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in request.headers.items():
        key = name.upper().replace("-", "_")
        environment[key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"] = value
    environment["CONTENT_LENGTH"] = str(len(request.body))
    return environment
