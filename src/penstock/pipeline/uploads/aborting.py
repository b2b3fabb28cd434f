"""Uploads that nobody goes on with: aborted, so that nothing of them is left, and billed."""

from __future__ import annotations

from contextlib import suppress

from penstock.model.exporting import Upload
from penstock.pipeline.destinations.destination import RefusedError, UnavailableError
from penstock.pipeline.settlements import Delivery
from penstock.pipeline.uploads.bucket import Bucket, NoBucketError


def abort(upload: Upload, patience: float) -> None:
    """UnavailableError or RefusedError if it may still be there afterwards."""
    bucket = Bucket(upload.bucket, patience)
    if upload.upload_id:
        bucket.abort(upload.key, upload.upload_id)
        return
    # It was about to be created when something ended: if there is one, only S3 knows.
    with suppress(NoBucketError):
        for upload_id in bucket.find_uploads(upload.key, upload.began):
            bucket.abort(upload.key, upload_id)


class AbortAttempt:
    """A slice without messages, that has an upload which is to be aborted."""

    def __init__(self, upload: Upload, patience: float) -> None:
        self._upload = upload
        self._patience = patience
        self._error = ""
        self._retry_after: float | None = None

    def run(self) -> None:
        try:
            abort(self._upload, self._patience)
        except UnavailableError as error:
            self._error = str(error)
            self._retry_after = error.retry_after
        except RefusedError as error:
            self._error = str(error)

    def delivery(self) -> Delivery:
        return Delivery(
            settled_end=self._upload.sequence_number,
            error=self._error,
            retry_after=self._retry_after,
        )

    def leave_behind(self) -> None:
        """Nothing: to be aborted twice does no harm."""
