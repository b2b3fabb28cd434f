"""Calls to S3, their bodies, and the meaning of answers."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import threading
import time
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from penstock.model.exporting import Upload
from penstock.pipeline.destinations.destination import RefusedError, UnavailableError
from penstock.pipeline.uploads.input_files import AllowedDirectories, InputFile, InputFileError
from penstock.pipeline.uploads.s3_calls import Body, GoneError, S3Calls
from penstock.sandbox.local_sandbox import Sandbox
from tests.pipeline.uploads.conftest import use_variables
from tests.pipeline.uploads.workbench import Workbench
from tests.support import TIMEOUT_S

S3 = S3Calls(TIMEOUT_S)


def body_of(path: Path, content: bytes) -> Body:
    path.write_bytes(content)
    with AllowedDirectories((), None).open(str(path)) as file:
        return Body(file, 0, len(content))


def with_other_digest(body: Body) -> Body:
    body.checksum = digest_of(b"other content")
    return body


def digest_of(content: bytes) -> str:
    return base64.b64encode(zlib.crc32(content).to_bytes(4, "big")).decode()


def plan(bucket: str, key: str = "a") -> Upload:
    """An upload that is not created yet."""
    return Upload(
        sequence_number=7,
        bucket=bucket,
        key=key,
        began=time.time_ns() // 1_000_000,
        fingerprint="f",
        size=1,
        part_size=1,
    )


def create(bench: Workbench, *, key: str = "a") -> Upload:
    planned = plan(bench.bucket, key)
    return msgspec.structs.replace(planned, upload_id=S3.create(planned, {}))


# Calls


def test_object_with_another_digest_is_refused(in_store: Workbench, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        S3.put_object(plan(in_store.bucket), with_other_digest(body_of(tmp_path / "a", b"x")), {})
    assert in_store.list_keys() == []


def test_part_with_another_digest_is_refused(in_store: Workbench, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        S3.put_part(create(in_store), 1, with_other_digest(body_of(tmp_path / "a", b"x")))


def test_object_is_made_of_parts_when_the_upload_is_complete(
    in_store: Workbench, tmp_path: Path
) -> None:
    upload = create(in_store)
    part = S3.put_part(upload, 1, body_of(tmp_path / "a", b"all of it"))
    assert hashlib.md5(b"all of it").hexdigest() in part
    assert in_store.unfinished() == ["a"]
    S3.complete(msgspec.structs.replace(upload, parts=[part]))
    assert in_store.content("a") == b"all of it"


def test_missing_upload_is_reported(in_store: Workbench, tmp_path: Path) -> None:
    upload = create(in_store)
    S3.abort(upload)
    with pytest.raises(GoneError):
        S3.put_part(upload, 1, body_of(tmp_path / "a", b"x"))
    with pytest.raises(GoneError):
        S3.complete(msgspec.structs.replace(upload, parts=['"etag" AAAAAA==']))


def test_missing_bucket_is_named(in_store: Workbench, tmp_path: Path) -> None:
    body = body_of(tmp_path / "a", b"x")
    with pytest.raises(RefusedError, match="'there-is-no-such-bucket' does not exist"):
        S3.put_object(plan("there-is-no-such-bucket"), body, {})
    with pytest.raises(RefusedError, match="'there-is-no-such-bucket' does not exist"):
        S3.create(plan("there-is-no-such-bucket"), {})


# Aborts


def test_upload_is_aborted_once_or_twice(bench: Workbench) -> None:
    upload = create(bench)
    S3.abort(upload)
    S3.abort(upload)
    assert bench.unfinished() == []


def test_upload_without_a_known_id_is_found_by_key_and_time(in_store: Workbench) -> None:
    upload = msgspec.structs.replace(create(in_store), upload_id="")
    create(in_store, key="ab")
    for shift in (-600_000, 600_000):
        S3.abort(msgspec.structs.replace(upload, began=upload.began + shift))
    assert in_store.unfinished() == ["a", "ab"]
    S3.abort(upload)
    assert in_store.unfinished() == ["ab"]


@pytest.mark.parametrize("upload_id", ["an-id", ""])
def test_missing_bucket_has_no_upload(in_store: Workbench, upload_id: str) -> None:
    upload = msgspec.structs.replace(create(in_store), upload_id=upload_id)
    S3.abort(msgspec.structs.replace(upload, bucket="there-is-no-such-bucket"))


# Errors


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
        # The answer of a proxy.
        ({"status": 403, "code": "403"}, False),
    ],
)
def test_errors_are_classified(
    in_sandbox: Workbench,
    cloud: Sandbox,
    tmp_path: Path,
    fault: dict[str, object],
    is_refused: bool,
) -> None:
    cloud.set_fault("s3", operation="PutObject", **fault)
    with pytest.raises((RefusedError, UnavailableError)) as raised:
        S3.put_object(plan(in_sandbox.bucket), body_of(tmp_path / "a", b"x"), {})
    assert isinstance(raised.value, RefusedError) is is_refused


@pytest.fixture
def portal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A captive portal that answers in place of S3."""

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


def test_answer_that_is_not_from_s3_is_an_error(portal: None, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="not from S3"):
        S3.put_object(plan("images"), body_of(tmp_path / "a", b"x"), {})
    with pytest.raises(UnavailableError):
        S3.create(plan("images"), {})


def test_invalid_endpoint_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_variables({"AWS_ENDPOINT_URL_S3": "nonsense", "AWS_REGION": "eu-west-1"}, monkeypatch)
    with pytest.raises(UnavailableError, match="nonsense"):
        S3.put_object(plan("images"), body_of(tmp_path / "a", b"x"), {})


# Bodies

LARGE = 16 * 1024 * 1024 + 5


def open_file(path: Path, content: bytes) -> InputFile:
    path.write_bytes(content)
    return AllowedDirectories((), None).open(str(path))


def test_small_body_is_in_memory(tmp_path: Path) -> None:
    with open_file(tmp_path / "a", b"0123456789") as file:
        body = Body(file, 2, 5)
    assert (body.content, body.size, body.checksum) == (b"23456", 5, digest_of(b"23456"))
    assert body.error is None


def test_large_body_is_a_file(tmp_path: Path) -> None:
    content = os.urandom(LARGE + 20)
    with open_file(tmp_path / "a", content) as file:
        body = Body(file, 10, LARGE)
        window = body.content
        assert not isinstance(window, bytes)
        assert body.checksum == digest_of(content[10 : 10 + LARGE])
        assert window.seek(0, io.SEEK_END) == LARGE
        assert window.read(5) == b""
        assert window.seek(3) == 3
        assert window.read(4) == content[13:17]
        assert window.tell() == 7
        assert window.seek(-2, io.SEEK_CUR) == 5
        assert window.read() == content[15 : 10 + LARGE]


def test_read_error_of_a_large_body_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with open_file(path, bytes(LARGE)) as file:
        body = Body(file, 0, LARGE)
        os.truncate(path, 100)
        window = body.content
        assert not isinstance(window, bytes)
        with pytest.raises(InputFileError):
            window.read()
        assert isinstance(body.error, InputFileError)


def test_large_body_is_read_into_a_buffer(tmp_path: Path) -> None:
    content = (bytes(range(256)) * (LARGE // 256 + 1))[:LARGE]
    with open_file(tmp_path / "a", content) as file:
        window = Body(file, 2, LARGE - 2).content
        assert isinstance(window, io.RawIOBase)
        buffer = bytearray(1000)
        assert window.readinto(buffer) == 1000
        assert buffer == content[2:1002]
        window.seek(-3, io.SEEK_END)
        assert window.readinto(buffer) == 3
        assert buffer[:3] == content[-3:]
        assert window.readinto(buffer) == 0


def test_check_ends_the_reading_of_a_large_body(tmp_path: Path) -> None:
    class EnoughError(Exception):
        pass

    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks > 20:
            raise EnoughError

    with open_file(tmp_path / "a", bytes(LARGE)) as file:
        body = Body(file, 0, LARGE, check)
        window = body.content
        assert not isinstance(window, bytes)
        with pytest.raises(EnoughError):
            list(iter(lambda: window.read(65_536), b""))
        assert isinstance(body.error, EnoughError)


def test_read_error_of_a_large_body_is_raised_by_the_call(
    in_store: Workbench, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    with open_file(path, bytes(LARGE)) as file:
        body = Body(file, 0, LARGE)
        os.truncate(path, 100)
        with pytest.raises(InputFileError, match="became shorter"):
            S3.put_object(plan(in_store.bucket), body, {})
    assert in_store.list_keys() == []
