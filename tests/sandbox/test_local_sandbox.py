"""Start and stop of a sandbox in this process."""

from __future__ import annotations

import importlib.util
import urllib.parse

import boto3
import pytest

from penstock.sandbox.client import SandboxError
from penstock.sandbox.local_sandbox import Sandbox
from tests.sandbox.conftest import CONFIG
from tests.sandbox.posting import post
from tests.support import running, wait_until


def test_streams_and_buckets_exist_after_the_start(session: boto3.Session) -> None:
    with Sandbox(kinesis_streams={"a": 2, "b": 1}, buckets=["from-the-start"]) as sandbox:
        kinesis = session.client("kinesis", endpoint_url=sandbox.url, config=CONFIG)
        s3 = session.client("s3", endpoint_url=sandbox.url, config=CONFIG)

        assert sandbox.names("kinesis") == ["a", "b"]
        assert len(kinesis.list_shards(StreamName="a")["Shards"]) == 2
        s3.head_bucket(Bucket="from-the-start")


def test_stopped_sandbox_closes_connections_and_frees_its_port() -> None:
    sandbox = Sandbox()
    sandbox.start()
    port = urllib.parse.urlsplit(sandbox.url).port
    assert port
    assert sandbox.is_healthy()

    sandbox.stop()
    sandbox.stop()

    assert not sandbox.is_healthy()
    with Sandbox(port) as again:
        assert again.is_healthy()


def test_restarted_sandbox_keeps_port_and_records() -> None:
    with Sandbox(kinesis_streams={"a": 1}) as sandbox:
        url = sandbox.url
        post(sandbox.http_url("kept"), b"before")
        sandbox.stop()
        with pytest.raises(OSError, match="refused"):
            post(sandbox.http_url("kept"), b"meanwhile")
        sandbox.start()
        post(sandbox.http_url("kept"), b"after")

        assert sandbox.url == url
        assert sandbox.payloads("http", "kept") == [b"before", b"after"]


def test_hanging_call_does_not_block_the_stop() -> None:
    sandbox = Sandbox()
    sandbox.start()
    sandbox.set_fault("http", hang=True)

    def hang() -> None:
        with pytest.raises(OSError, match=r"\w"):
            post(sandbox.http_url("held"), b"x")

    with running(hang):
        wait_until(lambda: sandbox.faults()[0]["callsMet"] == 1)
        sandbox.stop()


def test_port_in_use_is_reported(sandbox: Sandbox) -> None:
    port = urllib.parse.urlsplit(sandbox.url).port
    assert port

    with pytest.raises(SandboxError, match=f"cannot listen on port {port}: Address already"):
        Sandbox(port).start()


def test_invalid_bucket_name_is_reported() -> None:
    with pytest.raises(SandboxError, match="bucket 'x': InvalidBucketName"):
        Sandbox(buckets=["x"]).start()


def test_missing_moto_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(SandboxError, match=r"no module moto.*'penstock-streams\[sandbox\]'"):
        Sandbox().start()
