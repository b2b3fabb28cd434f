"""Calls to S3, and what its answers mean."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from penstock.pipeline.destinations.destination import RefusedError, UnavailableError
from penstock.pipeline.uploads.body import Body
from penstock.pipeline.uploads.bucket import Bucket, GoneError
from penstock.pipeline.uploads.input_files import AllowedDirectories
from penstock.sandbox.server import Sandbox
from tests.pipeline.uploads.conftest import use_variables
from tests.pipeline.uploads.workbench import Workbench
from tests.support import PATIENCE_S


def body_of(path: Path, content: bytes) -> Body:
    path.write_bytes(content)
    with AllowedDirectories((), None).open(str(path)) as file:
        return Body(file, 0, len(content))


@pytest.fixture
def bucket(in_store: Workbench) -> Bucket:
    return Bucket(in_store.bucket, PATIENCE_S)


def test_the_store_compares_digests(bucket: Bucket, in_store: Workbench, tmp_path: Path) -> None:
    body = body_of(tmp_path / "a", b"what was read")
    body.content = b"what arrived."
    with pytest.raises(UnavailableError):
        bucket.put("a", body, {})
    assert in_store.list_keys() == []


def test_parts_are_an_object_once_they_are_complete(
    bucket: Bucket, in_store: Workbench, tmp_path: Path
) -> None:
    upload_id = bucket.create_upload("a", {"x": "y"})
    part = bucket.put_part("a", upload_id, 1, body_of(tmp_path / "a", b"all of it"))
    assert hashlib.md5(b"all of it").hexdigest() in part
    assert in_store.unfinished() == ["a"]
    bucket.complete("a", upload_id, [part])
    assert in_store.content("a") == b"all of it"


def test_the_store_compares_the_digests_of_parts(bucket: Bucket, tmp_path: Path) -> None:
    upload_id = bucket.create_upload("a", {})
    body = body_of(tmp_path / "a", b"what was read")
    body.content = b"what arrived."
    with pytest.raises(UnavailableError):
        bucket.put_part("a", upload_id, 1, body)


def test_an_upload_is_aborted_once_or_twice(bucket: Bucket, in_store: Workbench) -> None:
    upload_id = bucket.create_upload("a", {})
    bucket.abort("a", upload_id)
    bucket.abort("a", upload_id)
    assert in_store.unfinished() == []


def test_an_upload_that_is_gone_is_told_apart(bucket: Bucket, tmp_path: Path) -> None:
    upload_id = bucket.create_upload("a", {})
    bucket.abort("a", upload_id)
    with pytest.raises(GoneError):
        bucket.put_part("a", upload_id, 1, body_of(tmp_path / "a", b"x"))
    with pytest.raises(GoneError):
        bucket.complete("a", upload_id, ['"etag" AAAAAA=='])


def test_uploads_are_found_by_their_key_and_time(bucket: Bucket) -> None:
    now = time.time_ns() // 1_000_000
    upload_id = bucket.create_upload("a", {})
    bucket.create_upload("ab", {})
    assert bucket.find_uploads("a", now) == [upload_id]
    assert bucket.find_uploads("a", now - 600_000) == []
    assert bucket.find_uploads("a", now + 600_000) == []


def test_a_bucket_that_does_not_exist_is_named(in_store: Workbench, tmp_path: Path) -> None:
    bucket = Bucket("there-is-no-such-bucket", PATIENCE_S)
    body = body_of(tmp_path / "a", b"x")
    with pytest.raises(RefusedError, match="'there-is-no-such-bucket' does not exist"):
        bucket.put("a", body, {})
    with pytest.raises(RefusedError, match="'there-is-no-such-bucket' does not exist"):
        bucket.create_upload("a", {})


@pytest.mark.parametrize(
    ("fault", "is_refused"),
    [
        ({"status": 403, "code": "AccessDenied"}, True),
        ({"status": 400, "code": "MetadataTooLarge"}, True),
        ({"status": 400, "code": "RequestTimeout"}, False),
        ({"status": 403, "code": "RequestTimeTooSkewed"}, False),
        ({"status": 403, "code": "InvalidAccessKeyId"}, False),
        ({"status": 429, "code": "Whatever"}, False),
        ({"status": 503, "code": "SlowDown"}, False),
        ({"status": 500, "code": "InternalError"}, False),
        ({"down": True}, False),
        # Of something on the way to S3.
        ({"status": 403, "code": "403"}, False),
    ],
)
def test_answers_are_sorted(
    in_sandbox: Workbench,
    cloud: Sandbox,
    tmp_path: Path,
    fault: dict[str, object],
    is_refused: bool,
) -> None:
    cloud.set_fault("s3", operation="PutObject", **fault)
    with pytest.raises((RefusedError, UnavailableError)) as raised:
        Bucket(in_sandbox.bucket, PATIENCE_S).put("a", body_of(tmp_path / "a", b"x"), {})
    assert isinstance(raised.value, RefusedError) is is_refused


@pytest.fixture
def portal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Something on the way that answers in place of S3, as in a hotel."""

    class Answers(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_POST()

        def do_POST(self) -> None:
            page = b"<html><body>Welcome</body></html>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever).start()
        variables = {
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{server.server_port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "eu-west-1",
        }
        use_variables(variables, monkeypatch)
        yield
        server.shutdown()


def test_an_answer_that_is_not_of_s3_is_no_success(portal: None, tmp_path: Path) -> None:
    bucket = Bucket("images", PATIENCE_S)
    with pytest.raises(UnavailableError, match="not of S3"):
        bucket.put("a", body_of(tmp_path / "a", b"x"), {})
    with pytest.raises(UnavailableError):
        bucket.create_upload("a", {})


def test_an_endpoint_that_is_none_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_variables({"AWS_ENDPOINT_URL_S3": "nonsense", "AWS_REGION": "eu-west-1"}, monkeypatch)
    with pytest.raises(UnavailableError, match="nonsense"):
        Bucket("images", PATIENCE_S).put("a", body_of(tmp_path / "a", b"x"), {})
