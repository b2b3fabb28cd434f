"""Choosing the protocol version."""

from __future__ import annotations

import pytest

from penstock.errors import ConnectFailedException, ResponseStatusCode
from penstock.wire.handshake import choose_version
from penstock.wire.requests import ConnectRequest


def request(preferred: str, *others: str) -> ConnectRequest:
    return ConnectRequest(
        request_id="r", protocol_version=preferred, other_supported_protocol_versions=list(others)
    )


@pytest.mark.parametrize(
    ("preferred", "others", "chosen"),
    [
        ("1.1.0", ["1.0.0"], "1.1.0"),
        ("1.0.0", [], "1.0.0"),
        ("1.0.0", ["1.1.0"], "1.0.0"),
        ("2.0.0", ["1.0.0", "1.1.0"], "1.1.0"),
        ("1.2.0", ["1.1.0", "1.0.0"], "1.1.0"),
        ("9.9.9", ["0.9.0", "1.0.0"], "1.0.0"),
    ],
)
def test_preferred_or_highest_common_version_is_chosen(
    preferred: str, others: list[str], chosen: str
) -> None:
    assert choose_version(request(preferred, *others)) == chosen


@pytest.mark.parametrize(("preferred", "others"), [("2.0.0", []), ("1.0.1", ["1.1.1"])])
def test_error_without_a_common_version_names_the_supported_ones(
    preferred: str, others: list[str]
) -> None:
    with pytest.raises(ConnectFailedException, match=r"1\.0\.0 and 1\.1\.0") as caught:
        choose_version(request(preferred, *others))

    assert caught.value.status is ResponseStatusCode.UnsupportedProtocolVersion
    assert caught.value.request_id == "r"


@pytest.mark.parametrize(
    "version", ["", "1", "1.1", "1.1.0.0", "v1.1.0", "1.1.x", " 1.1.0", "1.1.0\n", "1..0", "-1.0.0"]
)
def test_malformed_version_is_rejected(version: str) -> None:
    for offer in (request(version), request("1.1.0", version)):
        with pytest.raises(ConnectFailedException, match=r"form 1\.1\.0") as caught:
            choose_version(offer)

        assert caught.value.status is ResponseStatusCode.InvalidProtocolVersion
