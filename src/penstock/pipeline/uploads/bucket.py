"""Calls to S3 for one bucket: files and parts of them, each with a digest that S3 compares."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import ClientError

from penstock.pipeline.destinations import aws
from penstock.pipeline.destinations.destination import RefusedError, UnavailableError
from penstock.pipeline.uploads.body import Body

# Answers below 500 that are not about the task: what is sent again may arrive. All others are.
_PASSING = frozenset(
    (
        "AuthorizationHeaderMalformed",
        "AuthorizationQueryParametersError",
        "BadDigest",
        "BandwidthLimitExceeded",
        "ExpiredToken",
        "IncompleteBody",
        "InvalidAccessKeyId",
        "InvalidToken",
        "OperationAborted",
        "RequestTimeTooSkewed",
        "RequestTimeout",
        "SignatureDoesNotMatch",
        "SlowDown",
        "ThrottlingException",
        "TokenRefreshRequired",
        "TooManyRequestsException",
        "XAmzContentChecksumMismatch",
        "XAmzContentSHA256Mismatch",
    )
)
# An upload with one of these cannot be gone on with.
_GONE = frozenset(("InvalidPart", "InvalidPartOrder", "NoSuchUpload"))
_COMPLETING_FACTOR = 5
# When an upload may have been created, seen from when somebody was about to do so: times come in
# whole seconds, and a call may take its time.
_JUST_BEFORE = timedelta(seconds=-3)
_SOON_AFTER = timedelta(seconds=120)


class GoneError(Exception):
    """An upload is not there any more, or not as it was: completed, aborted, or expired."""


class NoBucketError(RefusedError):
    """There is no such bucket, and so nothing in it."""


class Bucket:
    """Each call is made once, and raises UnavailableError or RefusedError if it fails."""

    def __init__(self, name: str, timeout: float) -> None:
        self._name = name
        self._timeout = timeout

    def put(self, key: str, body: Body, metadata: Mapping[str, str]) -> None:
        self._send("put_object", body, Key=key, Metadata=metadata)

    def create_upload(self, key: str, metadata: Mapping[str, str]) -> str:
        answer = self._call(
            "create_multipart_upload", Key=key, Metadata=metadata, ChecksumAlgorithm="CRC32"
        )
        return _find(answer, "UploadId")

    def put_part(self, key: str, upload_id: str, number: int, body: Body) -> str:
        """What `complete` is to be told of it. GoneError if there is no such upload."""
        etag = self._send("upload_part", body, Key=key, UploadId=upload_id, PartNumber=number)
        return f"{etag} {body.digest}"

    def complete(self, key: str, upload_id: str, parts: Sequence[str]) -> None:
        """GoneError if there is no such upload, or not with these parts."""
        described = []
        for number, part in enumerate(parts, 1):
            etag, digest = part.split(" ")
            described.append({"PartNumber": number, "ETag": etag, "ChecksumCRC32": digest})
        answer = self._call(
            "complete_multipart_upload",
            # To put thousands of parts together takes its time.
            timeout=_COMPLETING_FACTOR * self._timeout,
            Key=key,
            UploadId=upload_id,
            MultipartUpload={"Parts": described},
        )
        _find(answer, "ETag")

    def abort(self, key: str, upload_id: str) -> None:
        # An upload that is gone needs no abort.
        with suppress(GoneError, NoBucketError):
            self._call("abort_multipart_upload", Key=key, UploadId=upload_id)

    def find_uploads(self, key: str, began_millis: int) -> list[str]:
        """The uploads of a key that were created about then."""
        answer = self._call("list_multipart_uploads", Prefix=key)
        # By the clock of S3, which the times of uploads follow: that of this machine may be wrong.
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
        now = parsedate_to_datetime(date) if date else datetime.now(UTC)
        began = now - timedelta(milliseconds=time.time() * 1000 - began_millis)
        return [
            upload["UploadId"]
            for upload in answer.get("Uploads", ())
            if upload["Key"] == key and _JUST_BEFORE < upload["Initiated"] - began < _SOON_AFTER
        ]

    def _send(self, operation: str, body: Body, **fields: Any) -> str:
        """The ETag of what has arrived; if the body could not be read, its error is raised."""
        body.rewind()
        try:
            answer = self._call(
                operation,
                Body=body.content,
                ContentLength=body.size,
                ChecksumCRC32=body.digest,
                **fields,
            )
        except UnavailableError as error:
            raise body.problem or error from None
        return _find(answer, "ETag")

    def _call(self, operation: str, timeout: float | None = None, **fields: Any) -> Any:
        with aws.sorting_errors(aws.S3, operation):
            try:
                with aws.using_client(aws.S3, timeout or self._timeout) as client:
                    return getattr(client, operation)(Bucket=self._name, **fields)
            except ClientError as error:
                raise self._explain(error) or error from None

    def _explain(self, error: ClientError) -> GoneError | RefusedError | None:
        """The error of an answer about the task; None if the call may succeed later."""
        answer: Any = error.response
        code = answer.get("Error", {}).get("Code", "")
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
        if code in _GONE:
            return GoneError(code)
        # S3 always has a code: an answer without one comes from a proxy.
        is_of_s3 = bool(code) and not code.isdecimal()
        if not is_of_s3 or status >= 500 or status in (408, 429) or code in _PASSING:
            return None
        match code:
            case "NoSuchBucket":
                return NoBucketError(f"the bucket {self._name!r} does not exist")
            case "AccessDenied":
                return RefusedError(
                    f"S3 denies access to the bucket {self._name!r}: allow s3:PutObject and "
                    "s3:AbortMultipartUpload to the role or user of the pipeline"
                )
            case "PermanentRedirect":
                return RefusedError(
                    f"the bucket {self._name!r} is in another region; set AWS_REGION"
                )
        message = answer["Error"].get("Message", "")
        return RefusedError(f"S3 refuses it: {code}: {message}".rstrip(": "))


def _find(answer: Mapping[str, Any], field: str) -> str:
    """A field that every answer of S3 has: one without it comes from a proxy or a portal."""
    if not answer.get(field):
        raise UnavailableError(f"{aws.S3}: an answer without {field}, which is not of S3")
    return str(answer[field])
