"""Uploads that nobody goes on with."""

from __future__ import annotations

import time

import msgspec
import pytest

from penstock.model.exporting import Upload
from penstock.pipeline.uploads.aborting import AbortAttempt, abort
from penstock.sandbox.server import Sandbox
from tests.pipeline.uploads.workbench import Workbench

PATIENCE = 5.0


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


def test_an_upload_is_aborted(bench: Workbench) -> None:
    upload = begin(bench)
    abort(upload, PATIENCE)
    abort(upload, PATIENCE)
    assert bench.unfinished() == []


def test_one_whose_name_is_not_known_is_looked_for(in_store: Workbench) -> None:
    abort(begin(in_store, is_known=False), PATIENCE)
    assert in_store.unfinished() == []


@pytest.mark.parametrize("is_known", [True, False])
def test_without_its_bucket_there_is_nothing_to_abort(in_store: Workbench, is_known: bool) -> None:
    upload = begin(in_store, is_known=is_known)
    abort(msgspec.structs.replace(upload, bucket="there-is-no-such-bucket"), PATIENCE)


def test_an_attempt_tells_what_became_of_it(in_sandbox: Workbench, cloud: Sandbox) -> None:
    attempt = AbortAttempt(begin(in_sandbox), PATIENCE)
    cloud.set_fault("s3", operation="AbortMultipartUpload", status=503, retry_after=3)
    attempt.run()
    delivery = attempt.delivery()
    assert delivery.error
    assert (delivery.settled_end, delivery.retry_after) == (7, 3)
    assert in_sandbox.unfinished() == ["a"]
    cloud.clear_faults()
    attempt = AbortAttempt(begin(in_sandbox), PATIENCE)
    attempt.run()
    assert attempt.delivery().error == ""


def test_denied_access_is_told_as_well(in_sandbox: Workbench, cloud: Sandbox) -> None:
    attempt = AbortAttempt(begin(in_sandbox), PATIENCE)
    cloud.set_fault("s3", operation="AbortMultipartUpload", status=403, code="AccessDenied")
    attempt.run()
    assert "denies access" in attempt.delivery().error
