"""AWS Signature Version 4 for requests that differ in their bodies only.

botocore's `SigV4Auth` computes the same signature, but from scratch for each request.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from botocore.auth import SIGNED_HEADERS_BLACKLIST

_ALGORITHM = "AWS4-HMAC-SHA256"


class RequestTemplate:
    """A request without its body and its signature. Its URL has no query."""

    def __init__(
        self, method: str, url: str, headers: Mapping[str, str], region: str, service: str
    ) -> None:
        self.method = method
        self.url = url
        self._headers = dict(headers)
        self._region = region
        self._service = service
        parts = urlsplit(url)
        self._start = f"{method}\n{parts.path or '/'}\n\n"
        self._signed = _canonicalize({"host": _find_host(url), **headers})
        # The secret and the day of the last key, and the key.
        self._key: tuple[str, str, bytes] = "", "", b""

    def sign(self, body: bytes, credentials: Any, now: float) -> dict[str, str]:
        """All headers of the request with this body; `now` is in seconds since 1970."""
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        added = {"X-Amz-Date": moment}
        if credentials.token:
            added["X-Amz-Security-Token"] = credentials.token
        signed = self._signed | _canonicalize(added)
        names = sorted(signed)
        lines = "".join(f"{name}:{signed[name]}\n" for name in names)
        signed_names = ";".join(names)
        canonical = f"{self._start}{lines}\n{signed_names}\n{hashlib.sha256(body).hexdigest()}"
        day = moment[:8]
        scope = f"{day}/{self._region}/{self._service}/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        key = self._find_key(credentials.secret_key, day)
        text = f"{_ALGORITHM}\n{moment}\n{scope}\n{digest}"
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        added["Authorization"] = (
            f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={signed_names}, Signature={signature}"
        )
        return self._headers | added

    def _find_key(self, secret: str, day: str) -> bytes:
        known_secret, known_day, key = self._key
        if (secret, day) != (known_secret, known_day):
            key = _derive_key(secret, day, self._region, self._service)
            self._key = secret, day, key
        return key


def _canonicalize(headers: Mapping[str, str]) -> dict[str, str]:
    """The canonical form of the signed headers."""
    return {
        lower: " ".join(value.split())
        for name, value in headers.items()
        if (lower := name.lower()) not in SIGNED_HEADERS_BLACKLIST
    }


def _find_host(url: str) -> str:
    """The Host header that HTTP clients send: without the port if it is the default."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    is_default = parts.port in (None, {"http": 80, "https": 443}.get(parts.scheme))
    return host if is_default else f"{host}:{parts.port}"


def _derive_key(secret: str, day: str, region: str, service: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
