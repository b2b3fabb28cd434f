"""The rows of the catalog as values."""

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
    """How far an export got; only what its destination confirmed moves it."""

    identifier: str
    last_exported: int = -1
    last_time: int | None = None
    error_message: str = ""
    exported_bytes: int = 0
    # Those that have arrived, and those that were skipped.
    processed_messages: int = 0
    skipped_messages: int = 0
    # An export that is removed and added again, or moved, has another id: reports and uploads that
    # began before are not its own.
    export_id: str = ""

    def moved_to(self, number: int, export_id: str) -> ExportProgress:
        """The next message has this number. Counters go on."""
        return self._replace(last_exported=number - 1, error_message="", export_id=export_id)


class UploadProgress(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How far an upload got, and whose it is: that is told also when its stream is gone."""

    export_id: str
    stream: str
    identifier: str
    status_config: StatusConfig | None = None
    upload: Upload
    # The upload is not continued, and has to be aborted.
    is_abandoned: bool = False
    # The first attempt to abort it failed, and this was reported.
    has_failed: bool = False

    @property
    def id(self) -> str:
        upload = self.upload
        # While they have no name yet, two of one task differ in when they began.
        which = f"{upload.sequence_number} {upload.began} {upload.upload_id}"
        return "\n".join((self.export_id, which, upload.bucket, upload.key))


decode_upload = msgspec.json.Decoder(UploadProgress).decode


class UploadChange(NamedTuple):
    """What is to be stored of uploads, and the ids of those that are over."""

    stored: Sequence[UploadProgress] = ()
    removed: Sequence[str] = ()


NO_UPLOADS = UploadChange()


class TokenRow(NamedTuple):
    id: str
    role: str
    patterns: tuple[str, ...]
    created_time: int
    # None: never.
    expires_time: int | None = None


class TokenRotation(NamedTuple):
    """The replacement of a token's secret."""

    created_time: int
    expires_time: int | None
    # The old secret is valid until then; None for ever.
    grace_end: int | None


def digest_token(secret: str) -> bytes:
    # A token is random, 256 bits: a fast hash keeps it secret as well as a slow one would.
    return hashlib.sha256(secret.encode()).digest()
