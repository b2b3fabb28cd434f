"""Uploads that no task continues."""

from __future__ import annotations

import time

import msgspec
import pytest

from penstock.model.exporting import Upload
from penstock.pipeline.uploads.aborting import UploadAbortion, abort
from penstock.sandbox.server import Sandbox
from tests.pipeline.uploads.workbench import Workbench
from tests.support import PATIENCE_S


def begin(bench: Workbench, *, is_known: bool = True) -> Upload:
    began = time.time_ns() // 1_000_000
    created = bench.client.create_multipart_upload(Bucket=bench.bucket, Key="a")
    return Upload(
        sequence_number=7,
        bucket=bench.bucket,
        key="a",
        upload_id=created["UploadId"] if is_known else "",
        began=began,
        fingerprint="f",
        size=1,
        part_size=1,
    )


def test_upload_is_aborted(bench: Workbench) -> None:
    upload = begin(bench)
    abort(upload, PATIENCE_S)
    abort(upload, PATIENCE_S)
    assert bench.unfinished() == []


def test_upload_without_a_known_id_is_found(in_store: Workbench) -> None:
    abort(begin(in_store, is_known=False), PATIENCE_S)
    assert in_store.unfinished() == []


@pytest.mark.parametrize("is_known", [True, False])
def test_missing_bucket_has_no_upload(in_store: Workbench, is_known: bool) -> None:
    upload = begin(in_store, is_known=is_known)
    abort(msgspec.structs.replace(upload, bucket="there-is-no-such-bucket"), PATIENCE_S)


def test_error_and_pause_are_reported(in_sandbox: Workbench, cloud: Sandbox) -> None:
    abortion = UploadAbortion(begin(in_sandbox), PATIENCE_S)
    cloud.set_fault("s3", operation="AbortMultipartUpload", status=503, retry_after=3)
    abortion.run()
    delivery = abortion.delivery()
    assert delivery.error
    assert (delivery.settled_end, delivery.pause) == (7, 3)
    assert in_sandbox.unfinished() == ["a"]
    cloud.clear_faults()
    abortion = UploadAbortion(begin(in_sandbox), PATIENCE_S)
    abortion.run()
    assert abortion.delivery().error == ""


def test_denied_access_is_reported(in_sandbox: Workbench, cloud: Sandbox) -> None:
    abortion = UploadAbortion(begin(in_sandbox), PATIENCE_S)
    cloud.set_fault("s3", operation="AbortMultipartUpload", status=403, code="AccessDenied")
    abortion.run()
    assert "denies access" in abortion.delivery().error
