"""Aborts uploads that no task continues, because S3 keeps and bills their parts."""

from __future__ import annotations

from contextlib import suppress

import msgspec

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
        self._delivery = Delivery(settled_end=upload.sequence_number)

    def run(self) -> None:
        try:
            abort(self._upload, self._timeout)
        except (UnavailableError, RefusedError) as error:
            self._delivery = msgspec.structs.replace(
                self._delivery, error=str(error), pause=getattr(error, "retry_after", None) or 0.0
            )

    def delivery(self) -> Delivery:
        return self._delivery
