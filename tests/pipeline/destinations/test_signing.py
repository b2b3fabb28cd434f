"""Signatures equal those of botocore."""

from __future__ import annotations

import calendar
import datetime as dt
import time

import botocore.auth
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.destinations.signing import RequestTemplate

URLS = [
    "https://kinesis.eu-west-1.amazonaws.com/",
    "https://kinesis.eu-west-1.amazonaws.com:443/",
    "https://data.iotsitewise.eu-west-1.amazonaws.com/properties",
    "http://localhost:4566/a-path/with_more.parts~",
    "http://127.0.0.1:80",
    "http://[::1]:4566/",
]
HEADERS = {
    "Content-Type": "application/x-amz-json-1.1",
    "User-Agent": "penstock/0 boto3/1",
    "X-Amz-Target": "Kinesis_20131202.PutRecords",
    "X-Spaces": "  several   spaces ",
    "Transfer-Encoding": "not signed",
}
SECRETS = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=60)


@pytest.mark.parametrize("url", URLS)
@given(body=st.binary(max_size=100), secret=SECRETS, token=st.none() | SECRETS)
def test_signature_is_that_of_botocore(
    url: str, body: bytes, secret: str, token: str | None
) -> None:
    credentials = ReadOnlyCredentials("AKID", secret, token, None)
    request = AWSRequest("POST", url, HEADERS, body)
    SigV4Auth(credentials, "kinesis", "eu-west-1").add_auth(request)
    # botocore takes the time of the clock.
    moment = calendar.timegm(time.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ"))
    template = RequestTemplate("POST", url, HEADERS, "eu-west-1", "kinesis")
    assert template.sign(body, credentials, moment) == dict(request.headers.items())


@pytest.mark.parametrize("days", [0, 1, 20_000])
def test_key_is_that_of_the_day_and_the_secret(days: int, monkeypatch: pytest.MonkeyPatch) -> None:
    template = RequestTemplate("POST", URLS[0], HEADERS, "eu-west-1", "kinesis")
    for seconds in (days * 86_400, days * 86_400 + 86_399, (days + 1) * 86_400):
        now = dt.datetime.fromtimestamp(seconds, dt.UTC)
        monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda now=now: now)
        for secret in ("one", "other"):
            credentials = ReadOnlyCredentials("AKID", secret, None, None)
            request = AWSRequest("POST", URLS[0], HEADERS, b"")
            SigV4Auth(credentials, "kinesis", "eu-west-1").add_auth(request)
            assert template.sign(b"", credentials, seconds) == dict(request.headers.items())
