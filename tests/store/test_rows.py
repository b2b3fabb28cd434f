"""Rows of the catalog: ids and encoding of uploads, digests of tokens."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.model.exporting import Upload
from penstock.store.rows import UploadProgress, decode_upload, digest_token

UPLOAD = UploadProgress(
    export_id="x",
    stream="s",
    identifier="e",
    upload=Upload(
        sequence_number=1,
        bucket="b",
        key="k",
        upload_id="u",
        began=1,
        fingerprint="f",
        size=2,
        part_size=3,
        parts=["x", ""],
    ),
)


@pytest.mark.parametrize(
    "changes",
    [{"sequence_number": 2}, {"bucket": "c"}, {"key": "l"}, {"upload_id": "v"}, {"began": 2}],
)
def test_upload_ids_differ_by_task_object_and_start(changes: dict[str, Any]) -> None:
    other = msgspec.structs.replace(
        UPLOAD, upload=msgspec.structs.replace(UPLOAD.upload, **changes)
    )
    assert other.id != UPLOAD.id


def test_upload_id_does_not_depend_on_progress() -> None:
    later = msgspec.structs.replace(
        UPLOAD,
        upload=msgspec.structs.replace(UPLOAD.upload, parts=["x", "y"]),
        is_abandoned=True,
        has_failed=True,
    )
    assert later.id == UPLOAD.id


def test_upload_round_trip() -> None:
    assert decode_upload(msgspec.json.encode(UPLOAD)) == UPLOAD


def test_digest_does_not_contain_the_secret() -> None:
    assert digest_token("secret") == digest_token("secret") != digest_token("secret2")
    assert b"secret" not in digest_token("secret")
