"""HTTP requests without an AWS client."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, NamedTuple

from tests.support import TIMEOUT_S


class Posted(NamedTuple):
    status: int
    answer: Any
    headers: dict[str, str]


def post(url: str, body: bytes, method: str = "POST") -> Posted:
    request = urllib.request.Request(url, body, {"Content-Type": "text/plain"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return Posted(response.status, json.load(response), dict(response.headers))
    except urllib.error.HTTPError as error:
        with error:
            return Posted(error.code, json.load(error), dict(error.headers))
