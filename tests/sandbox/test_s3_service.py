"""S3 of the sandbox, with boto3."""

from __future__ import annotations

import io
import os
from itertools import count
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError
from mypy_boto3_s3.client import S3Client

from penstock.sandbox.local_sandbox import Sandbox
from penstock.sandbox.s3_service import S3
from penstock.sandbox.service import ServiceError, ServiceRequest
from tests.support import MEBIBYTE

_numbers = count()


@pytest.fixture
def bucket(sandbox: Sandbox, s3: S3Client) -> str:
    name = f"windfarm-{next(_numbers)}"
    s3.create_bucket(Bucket=name)
    sandbox.reset_calls()
    return name


def test_objects_are_written_and_read(s3: S3Client, bucket: str) -> None:
    key, data = "a b/ü+?&.bin", os.urandom(100_000)

    s3.put_object(Bucket=bucket, Key=key, Body=data, Metadata={"turbine": "7"})

    found = s3.get_object(Bucket=bucket, Key=key)
    assert found["Body"].read() == data
    assert found["Metadata"] == {"turbine": "7"}
    assert s3.head_object(Bucket=bucket, Key=key)["ContentLength"] == len(data)
    listed = s3.list_objects_v2(Bucket=bucket, Prefix="a b/")["Contents"]
    assert [item["Key"] for item in listed] == [key]
    s3.delete_object(Bucket=bucket, Key=key)
    with pytest.raises(ClientError, match="404"):
        s3.head_object(Bucket=bucket, Key=key)


def test_multipart_upload(sandbox: Sandbox, s3: S3Client, bucket: str) -> None:
    data = os.urandom(11 * MEBIBYTE)
    parts = TransferConfig(multipart_threshold=5 * MEBIBYTE, multipart_chunksize=5 * MEBIBYTE)

    s3.upload_fileobj(io.BytesIO(data), bucket, "large", Config=parts)

    assert s3.get_object(Bucket=bucket, Key="large")["Body"].read() == data
    operations = [call["operation"] for call in sandbox.calls("s3", bucket)]
    assert operations == [
        "CreateMultipartUpload",
        *["UploadPart"] * 3,
        "CompleteMultipartUpload",
        "GetObject",
    ]
    assert sandbox.records("s3", bucket)[-1]["key"] == "large"


def test_aborted_upload_leaves_no_parts(s3: S3Client, bucket: str) -> None:
    upload = s3.create_multipart_upload(Bucket=bucket, Key="given-up")["UploadId"]
    s3.upload_part(Bucket=bucket, Key="given-up", UploadId=upload, PartNumber=1, Body=b"x")

    s3.abort_multipart_upload(Bucket=bucket, Key="given-up", UploadId=upload)

    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)


def test_unknown_bucket_is_an_error(sandbox: Sandbox, s3: S3Client) -> None:
    with pytest.raises(s3.exceptions.NoSuchBucket):
        s3.put_object(Bucket="not-there", Key="x", Body=b"")

    (call,) = sandbox.calls("s3", "not-there")
    assert (call["operation"], call["outcome"], call["stored"]) == ("PutObject", "NoSuchBucket", 0)


def test_bucket_is_created_without_a_request() -> None:
    s3 = S3(MEBIBYTE)

    s3.create_bucket("made-before")
    s3.create_bucket("made-before")

    head = s3.read(ServiceRequest("HEAD", "/made-before", {"host": "127.0.0.1:1"}, b""))
    assert head.perform({}).status == 200
    with pytest.raises(ServiceError, match="bucket 'x': InvalidBucketName"):
        s3.create_bucket("x")


@pytest.mark.parametrize(
    ("method", "target", "headers", "operation", "names"),
    [
        ("GET", "/", {}, "ListBuckets", ()),
        ("PUT", "/bucket", {}, "CreateBucket", ("bucket",)),
        ("GET", "/bucket?list-type=2", {}, "ListObjectsV2", ("bucket",)),
        ("GET", "/bucket/key?x-id=GetObject", {}, "GetObject", ("bucket",)),
        ("PUT", "/bucket/key?partNumber=1&uploadId=u", {}, "UploadPart", ("bucket",)),
        ("POST", "/bucket/key?uploads", {}, "CreateMultipartUpload", ("bucket",)),
        ("PUT", "/bucket/key", {"x-amz-copy-source": "a/b"}, "CopyObject", ("bucket",)),
        ("PUT", "/key", {"host": "bucket.localhost:4566"}, "PutObject", ("bucket",)),
        ("PUT", "/bucket/key", {"host": "localhost"}, "PutObject", ("bucket",)),
        ("PATCH", "/bucket/key", {}, "PATCH", ("bucket",)),
    ],
)
def test_operation_is_found_by_method_path_and_query(
    method: str, target: str, headers: dict[str, str], operation: str, names: tuple[str, ...]
) -> None:
    call = S3(1).read(ServiceRequest(method, target, {"host": "127.0.0.1:4566", **headers}, b""))

    assert (call.operation, call.names) == (operation, names)


def test_unknown_upload_gives_the_error_of_s3(s3: S3Client, bucket: str) -> None:
    unknown_upload: Any = {"Bucket": bucket, "Key": "parts", "UploadId": "none"}
    for call, fields in (
        (s3.upload_part, {"PartNumber": 1, "Body": b"x"}),
        (s3.list_parts, {}),
        (s3.abort_multipart_upload, {}),
        (
            s3.complete_multipart_upload,
            {"MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": "x"}]}},
        ),
    ):
        with pytest.raises(ClientError, match="NoSuchUpload"):
            call(**unknown_upload, **fields)


def test_faults_have_the_error_codes_of_s3(sandbox: Sandbox, s3: S3Client, bucket: str) -> None:
    sandbox.set_fault("s3", name=bucket, throttle=True, for_calls=1)
    with pytest.raises(ClientError, match="SlowDown") as throttled:
        s3.put_object(Bucket=bucket, Key="x", Body=b"")
    assert throttled.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503

    sandbox.set_fault("s3", operation="UploadPart", status=403, code="AccessDenied")
    s3.put_object(Bucket=bucket, Key="x", Body=b"")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="parts")["UploadId"]
    with pytest.raises(ClientError, match="AccessDenied"):
        s3.upload_part(Bucket=bucket, Key="parts", UploadId=upload, PartNumber=1, Body=b"x")


def test_every_nth_write_is_refused(sandbox: Sandbox, s3: S3Client, bucket: str) -> None:
    sandbox.set_fault("s3", refuse_every=2)
    s3.put_object(Bucket=bucket, Key="first", Body=b"")

    with pytest.raises(ClientError, match="SlowDown"):
        s3.put_object(Bucket=bucket, Key="second", Body=b"")

    assert s3.get_object(Bucket=bucket, Key="first")["Body"].read() == b""
