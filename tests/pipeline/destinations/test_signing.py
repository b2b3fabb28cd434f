"""Signatures must be those of botocore."""

from __future__ import annotations

import calendar
import re
import time

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
}
SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)


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


def test_template_is_signed_anew_each_day() -> None:
    credentials = ReadOnlyCredentials("AKID", "secret", None, None)
    template = RequestTemplate("POST", URLS[0], HEADERS, "eu-west-1", "kinesis")
    day = 24 * 60 * 60
    scopes = [
        re.findall(r"Credential=AKID/(\d+)/", template.sign(b"", credentials, now)["Authorization"])
        for now in (0, day - 1, day)
    ]
    assert scopes == [["19700101"], ["19700101"], ["19700102"]]
