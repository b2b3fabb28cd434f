"""The HTTP sink."""

from __future__ import annotations

from penstock.sandbox.local_sandbox import Sandbox
from tests.sandbox.posting import post


def test_requests_are_stored_with_headers(sandbox: Sandbox) -> None:
    assert post(sandbox.http_url("a sink"), b"\x00one").status == 200
    assert post(sandbox.http_url("a sink"), b"two", "PUT").status == 200

    assert sandbox.payloads("http", "a sink") == [b"\x00one", b"two"]
    kept = sandbox.records("http", "a sink")
    assert [found["method"] for found in kept] == ["POST", "PUT"]
    assert kept[0]["headers"]["content-type"] == "text/plain"
    assert "a sink" in sandbox.names("http")


def test_fault_sets_status_and_retry_after(sandbox: Sandbox) -> None:
    sandbox.set_fault("http", name="busy", status=503, retry_after=7, for_calls=1)

    refused = post(sandbox.http_url("busy"), b"x")

    assert (refused.status, refused.headers["Retry-After"]) == (503, "7")
    assert sandbox.records("http", "busy") == []
    assert post(sandbox.http_url("busy"), b"x").status == 200


def test_every_nth_post_is_refused(sandbox: Sandbox) -> None:
    sandbox.set_fault("http", name="often", refuse_every=2)

    assert [post(sandbox.http_url("often"), b"x").status for _ in range(4)] == [200, 429, 200, 429]


def test_sink_needs_a_name(sandbox: Sandbox) -> None:
    assert post(sandbox.http_url(""), b"x").status == 405
