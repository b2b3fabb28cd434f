"""A sandbox in this process: it starts, stops, and says why it cannot."""

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


def test_what_is_wanted_from_the_start_is_there(session: boto3.Session) -> None:
    with Sandbox(kinesis_streams={"a": 2, "b": 1}, buckets=["from-the-start"]) as sandbox:
        kinesis = session.client("kinesis", endpoint_url=sandbox.url, config=CONFIG)
        s3 = session.client("s3", endpoint_url=sandbox.url, config=CONFIG)

        assert sandbox.names("kinesis") == ["a", "b"]
        assert len(kinesis.list_shards(StreamName="a")["Shards"]) == 2
        s3.head_bucket(Bucket="from-the-start")


def test_it_is_gone_when_it_was_stopped_and_its_port_is_free() -> None:
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


def test_started_again_it_has_its_port_and_what_it_had_kept() -> None:
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


def test_a_call_that_hangs_does_not_keep_it_from_stopping() -> None:
    sandbox = Sandbox()
    sandbox.start()
    sandbox.set_fault("http", hang=True)

    def hang() -> None:
        with pytest.raises(OSError, match=r"\w"):
            post(sandbox.http_url("held"), b"x")

    with running(hang):
        wait_until(lambda: sandbox.faults()[0]["callsMet"] == 1)
        sandbox.stop()


def test_a_port_that_is_taken_is_told(sandbox: Sandbox) -> None:
    port = urllib.parse.urlsplit(sandbox.url).port
    assert port

    with pytest.raises(SandboxError, match=f"cannot listen on port {port}: Address already"):
        Sandbox(port).start()


def test_a_bucket_that_cannot_be_is_told() -> None:
    with pytest.raises(SandboxError, match="bucket 'x': InvalidBucketName"):
        Sandbox(buckets=["x"]).start()


def test_without_moto_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(SandboxError, match=r"no module moto.*pip install 'penstock\[sandbox\]'"):
        Sandbox().start()
