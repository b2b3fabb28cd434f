"""Rows of the catalog."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.model.exporting import Upload
from penstock.model.status_message import StatusConfig

STREAM_ID = re.compile(r"[0-9a-f]{16}")


class StreamRow(NamedTuple):
    id: str
    name: str
    definition: bytes
    oldest: int
    reserved: int


class ExportProgress(NamedTuple):
    """The progress of an export. It advances only when the destination confirms messages."""

    identifier: str
    last_exported: int = -1
    last_time: int | None = None
    error_message: str = ""
    exported_bytes: int = 0
    # Exported and skipped messages.
    processed_messages: int = 0
    skipped_messages: int = 0
    # A new id is assigned when an export is added again or moved. Reports and uploads with the old
    # id do not change its progress.
    export_id: str = ""

    def moved_to(self, number: int, export_id: str) -> ExportProgress:
        """The progress of an export that continues with message `number`. The counters stay."""
        return self._replace(last_exported=number - 1, error_message="", export_id=export_id)


class UploadProgress(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The progress of an upload, with the name of its stream for later statuses."""

    export_id: str
    stream: str
    identifier: str
    status_config: StatusConfig | None = None
    upload: Upload
    # The upload must be aborted.
    is_abandoned: bool = False
    # The first attempt to abort it failed, and the failure was reported.
    has_failed: bool = False

    @property
    def id(self) -> str:
        upload = self.upload
        # Before S3 assigns an id, two uploads of one task differ only in their start time.
        attempt = f"{upload.sequence_number} {upload.began} {upload.upload_id}"
        return "\n".join((self.export_id, attempt, upload.bucket, upload.key))


decode_upload = msgspec.json.Decoder(UploadProgress).decode


class UploadChange(NamedTuple):
    """Uploads to store, and the ids of finished uploads to remove."""

    stored: Sequence[UploadProgress] = ()
    removed: Sequence[str] = ()


NO_UPLOADS = UploadChange()


class TokenRow(NamedTuple):
    id: str
    role: str
    patterns: tuple[str, ...]
    created_time: int
    # None: the token does not expire.
    expires_time: int | None = None


class TokenRotation(NamedTuple):
    """The replacement of a token's secret."""

    created_time: int
    expires_time: int | None
    # When the old secret expires; None: never.
    grace_end: int | None


def digest_token(secret: str) -> bytes:
    # A fast hash is enough for 256 random bits.
    return hashlib.sha256(secret.encode()).digest()
