"""Calls to S3 for objects and parts, each with a checksum that S3 verifies."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from penstock.model.exporting import Upload
from penstock.pipeline.destinations import aws
from penstock.pipeline.destinations.destination import RefusedError, UnavailableError
from penstock.pipeline.uploads.input_files import InputFile
from penstock.store.record import crc32

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_MAX_IN_MEMORY = 16 * 1024 * 1024
_CHECKSUM_STEP = 1024 * 1024

# Error codes, with a status below 500, that the task does not cause: a retry may succeed.
_TRANSIENT = frozenset(
    """
    AuthorizationHeaderMalformed AuthorizationQueryParametersError BadDigest
    BandwidthLimitExceeded ExpiredToken IncompleteBody InvalidAccessKeyId InvalidToken
    OperationAborted RequestTimeTooSkewed RequestTimeout SignatureDoesNotMatch SlowDown
    ThrottlingException TokenRefreshRequired TooManyRequestsException
    XAmzContentChecksumMismatch XAmzContentSHA256Mismatch
    """.split()  # noqa: SIM905 - a list would have a line for each
)
_GONE = frozenset(("InvalidPart", "InvalidPartOrder", "NoSuchBucket", "NoSuchUpload"))
_REASONS = {
    "AccessDenied": "S3 denies access to the bucket {!r}: allow s3:PutObject and "
    "s3:AbortMultipartUpload for the role or user of the pipeline",
    "NoSuchBucket": "the bucket {!r} does not exist",
    "PermanentRedirect": "the bucket {!r} is in another region; set AWS_REGION",
}
# S3 needs longer to complete an upload of thousands of parts.
_TIMEOUT_FACTORS = {"complete_multipart_upload": 5}
# The creation time of an upload, relative to the time before the call. S3 rounds it to seconds.
_MIN_CREATION_DELAY = timedelta(seconds=-3)
_MAX_CREATION_DELAY = timedelta(seconds=120)


class GoneError(RefusedError):
    """S3 does not have the bucket, the upload, or one of its parts."""


class Body(io.RawIOBase):
    """Bytes [start, start + size) of a file as the body of one call, and their checksum.

    A small body is in memory. A large body is read for its checksum, and again while it is sent:
    the memory does not depend on the size, and S3 refuses bytes that have changed in between.
    `check` is called for each read of a large body, and raises to end the call.
    """

    def __init__(
        self, file: InputFile, start: int, size: int, check: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self.size = size
        # An error of a read during the call, which boto3 and awscrt would hide.
        self.error: Exception | None = None
        self._file = file
        self._start = start
        self._check = check
        self._position = 0
        self._in_memory: bytes | None = None
        # CRC-32 is the fastest checksum that S3 verifies.
        if size <= _MAX_IN_MEMORY:
            self._in_memory = file.read_at(start, size)
            crc = crc32(self._in_memory)
        else:
            crc, end = 0, start + size
            for position in range(start, end, _CHECKSUM_STEP):
                check()
                crc = crc32(file.read_at(position, min(_CHECKSUM_STEP, end - position)), crc)
        self.checksum = base64.b64encode(crc.to_bytes(4, "big")).decode()

    @property
    def content(self) -> bytes | Body:
        return self if self._in_memory is None else self._in_memory

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        length = min(len(view), max(self.size - self._position, 0))
        try:
            self._check()
            view[:length] = self._file.read_at(self._start + self._position, length)
        except Exception as error:
            self.error = error
            raise
        self._position += length
        return length


class S3Calls:
    """Each call is made once, and raises UnavailableError or RefusedError if it fails."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    def put_object(self, upload: Upload, body: Body, metadata: Mapping[str, str]) -> None:
        """Creates the object of an upload in one call."""
        self._send("put_object", upload, body, Metadata=metadata)

    def create(self, upload: Upload, metadata: Mapping[str, str]) -> str:
        """Creates a multipart upload, and returns its id."""
        fields = {"Key": upload.key, "Metadata": metadata, "ChecksumAlgorithm": "CRC32"}
        return _get(self._call("create_multipart_upload", upload, **fields), "UploadId")

    def put_part(self, upload: Upload, number: int, body: Body) -> str:
        """Sends a part, and returns its entry in the upload. GoneError if S3 has no such upload."""
        fields = {"UploadId": upload.upload_id, "PartNumber": number}
        return f"{self._send('upload_part', upload, body, **fields)} {body.checksum}"

    def complete(self, upload: Upload) -> None:
        """Completes an upload. GoneError if S3 does not have it, or lacks one of its parts."""
        parts = []
        for number, part in enumerate(upload.parts, 1):
            etag, checksum = part.split(" ")
            parts.append({"PartNumber": number, "ETag": etag, "ChecksumCRC32": checksum})
        fields = {"UploadId": upload.upload_id, "MultipartUpload": {"Parts": parts}}
        answer = self._call("complete_multipart_upload", upload, Key=upload.key, **fields)
        _get(answer, "ETag")

    def abort(self, upload: Upload) -> None:
        """Aborts an upload if S3 has it. Without an id, finds it by its key and time."""
        with suppress(GoneError):
            for upload_id in [upload.upload_id] if upload.upload_id else self._find_ids(upload):
                fields = {"Key": upload.key, "UploadId": upload_id}
                with suppress(GoneError):
                    self._call("abort_multipart_upload", upload, **fields)

    def _find_ids(self, upload: Upload) -> list[str]:
        """The uploads with the key of `upload` that S3 created when `upload` began."""
        answer = self._call("list_multipart_uploads", upload, Prefix=upload.key)
        # By the clock of S3, because the clock of this machine may be wrong.
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
        now = parsedate_to_datetime(date) if date else datetime.now(UTC)
        began = now - timedelta(milliseconds=time.time() * 1000 - upload.began)
        return [
            found["UploadId"]
            for found in answer.get("Uploads", ())
            if found["Key"] == upload.key
            and _MIN_CREATION_DELAY < found["Initiated"] - began < _MAX_CREATION_DELAY
        ]

    def _send(self, operation: str, upload: Upload, body: Body, **fields: Any) -> str:
        """Sends a body, and returns the ETag. If the body could not be read, raises its error."""
        fields |= {"Key": upload.key, "ContentLength": body.size, "ChecksumCRC32": body.checksum}
        try:
            answer = self._call(operation, upload, Body=body.content, **fields)
        except Exception:
            if body.error is not None:
                raise body.error from None
            raise
        return _get(answer, "ETag")

    def _call(self, operation: str, upload: Upload, **fields: Any) -> Any:
        timeout = self._timeout * _TIMEOUT_FACTORS.get(operation, 1)
        with aws.mapping_errors(aws.S3, operation):
            try:
                with aws.using_client(aws.S3, timeout) as client:
                    return getattr(client, operation)(Bucket=upload.bucket, **fields)
            except ClientError as error:
                raise _explain(error, upload.bucket) or error from None


def _explain(error: ClientError, bucket: str) -> RefusedError | None:
    """The error of an answer, if the task causes it; None if a retry may succeed."""
    answer: Any = error.response
    code = answer.get("Error", {}).get("Code", "")
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    # Errors of S3 have a code. An answer without a code, or with a number, is from a proxy.
    if not code or code.isdecimal() or code in _TRANSIENT or status >= 500 or status in (408, 429):
        return None
    if code in _REASONS:
        text = _REASONS[code].format(bucket)
    else:
        text = f"S3 refuses the call: {code}: {answer['Error'].get('Message', '')}".rstrip(": ")
    return GoneError(text) if code in _GONE else RefusedError(text)


def _get(answer: Mapping[str, Any], field: str) -> str:
    """A field that every answer of S3 has."""
    if not answer.get(field):
        raise UnavailableError(f"{aws.S3}: an answer without {field} is not from S3")
    return str(answer[field])
