"""Aborts uploads that no task continues, because S3 keeps and bills their parts."""

from __future__ import annotations

from contextlib import suppress

from penstock.model.exporting import Upload
from penstock.pipeline.destinations.destination import RefusedError, UnavailableError
from penstock.pipeline.settlements import Delivery
from penstock.pipeline.uploads.bucket import Bucket, NoBucketError


def abort(upload: Upload, timeout: float) -> None:
    """UnavailableError or RefusedError if it may still be there afterwards."""
    bucket = Bucket(upload.bucket, timeout)
    if upload.upload_id:
        bucket.abort(upload.key, upload.upload_id)
        return
    # A crash happened before or after it was created: only S3 knows.
    with suppress(NoBucketError):
        for upload_id in bucket.find_uploads(upload.key, upload.began):
            bucket.abort(upload.key, upload_id)


class UploadAbortion:
    """The delivery of an `UploadAbort`."""

    def __init__(self, upload: Upload, timeout: float) -> None:
        self._upload = upload
        self._timeout = timeout
        self._error = ""
        self._retry_after = 0.0

    def run(self) -> None:
        try:
            abort(self._upload, self._timeout)
        except UnavailableError as error:
            self._error = str(error)
            self._retry_after = error.retry_after or 0.0
        except RefusedError as error:
            self._error = str(error)

    def delivery(self) -> Delivery:
        return Delivery(
            settled_end=self._upload.sequence_number,
            error=self._error,
            pause=self._retry_after,
        )
