"""HTTP: a POST for each message, or one with many of them as JSON."""

from __future__ import annotations

import os
import re
import ssl
import threading
import time
import urllib.request
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import unquote

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import Url, parse_url

from penstock import __version__
from penstock.model import ExportFormat, HTTPConfig
from penstock.pipeline.destinations.destination import (
    Answer,
    Call,
    Destination,
    Export,
    Messages,
    RefusedError,
    UnavailableError,
)

_MAX_MESSAGES = 500
# As many as jobs that a task may have.
_MAX_CONNECTIONS = 256
_SHOWN_CHARACTERS = 200
_SHOWN_BYTES = 4 * _SHOWN_CHARACTERS
_DEFAULT_PORTS = {"http": 80, "https": 443}

# These pass, as do all of 500 and above.
_PASSING = frozenset((408, 425, 429))
# What is wrong is the address, or who asks: fewer messages would make no difference.
_ABOUT_THE_ENDPOINT = frozenset((401, 403, 404, 405))

_OBJECT = re.compile(r"^(<[^>]* at 0x[^>]*>|\S+\(host=[^)]*\)): ")

_lock = threading.Lock()
_pools: dict[tuple[float, str | None], urllib3.PoolManager] = {}
# A connection that a child shares with its parent would mix the answers of both.
os.register_at_fork(after_in_child=_pools.clear)


class _Message(msgspec.Struct, rename="camel", gc=False):
    """A message as JSON; its payload is base64 there."""

    stream_name: str
    sequence_number: int
    ingest_time: int
    payload: bytes


class _Sent(NamedTuple):
    numbers: list[int]
    body: bytes


class HttpDestination(Destination):
    def __init__(self, export: Export) -> None:
        assert isinstance(export.config, HTTPConfig)
        config = export.config
        self._uri = config.uri
        self._timeout = export.timeout
        self._is_batched = config.export_format is ExportFormat.JSON_BATCHED
        self._max_messages = (
            min(config.batch_size or _MAX_MESSAGES, _MAX_MESSAGES) if self._is_batched else 1
        )
        kind = "application/json" if self._is_batched else "application/octet-stream"
        self._headers = {"Content-Type": kind, "User-Agent": f"penstock/{__version__}"}
        self._pool: urllib3.PoolManager | None = None

    def prepare(self, messages: Messages, start: int, limit: int) -> Call:
        stop = min(start + min(limit, self._max_messages), len(messages.numbers))
        numbers = list(messages.numbers[start:stop])
        body = messages.payloads[start]
        if self._is_batched:
            columns = numbers, messages.ingest_times[start:stop], messages.payloads[start:stop]
            body = msgspec.json.encode(
                [_Message(messages.stream, *row) for row in zip(*columns, strict=True)]
            )
        return Call(start, stop, {}, _Sent(numbers, body), len(body))

    def send(self, call: Call) -> Answer:
        sent: _Sent = call.content
        url = _parse_uri(self._uri)
        # Without what follows the path, which may be a secret, as may what comes before the host.
        doing = f"POST {url._replace(auth=None, query=None, fragment=None)}"
        headers = self._headers
        if url.auth:
            headers = headers | urllib3.make_headers(basic_auth=unquote(url.auth))
        if self._pool is None:
            self._pool = _get_pool(self._timeout, url)
        try:
            response = self._pool.request(
                "POST",
                url._replace(auth=None, fragment=None).url,
                body=sent.body,
                headers=headers,
                redirect=False,
                retries=False,
            )
        except (HTTPError, OSError) as error:
            raise UnavailableError(f"{doing}: {_explain(error)}") from None
        return self._read_answer(response, sent, doing)

    def _read_answer(self, response: urllib3.BaseHTTPResponse, sent: _Sent, doing: str) -> Answer:
        status = response.status
        if 200 <= status < 300:
            return Answer()
        text = response.data[:_SHOWN_BYTES].decode("utf-8", "replace")[:_SHOWN_CHARACTERS].strip()
        reason = f"{doing}: {status} {response.reason or ''}".rstrip()
        reason = f"{reason}: {text}" if text else reason
        if status >= 500 or status in _PASSING:
            retry_after = parse_retry_after(response.headers.get("Retry-After"), time.time())
            raise UnavailableError(reason, retry_after=retry_after)
        if self._is_batched and status >= 400 and status not in _ABOUT_THE_ENDPOINT:
            raise RefusedError(reason)
        return Answer(refused=dict.fromkeys(sent.numbers, reason))

    def close(self) -> None:
        """Nothing: connections are those of the process."""


def _parse_uri(uri: str) -> Url:
    try:
        url = parse_url(uri)
    except LocationParseError:
        raise UnavailableError(
            "uri is not a URI: expected http:// or https:// and a host"
        ) from None
    if url.scheme not in _DEFAULT_PORTS or not url.host:
        raise UnavailableError(
            f"uri begins with {url.scheme}:// and has the host {url.host}: expected http:// or "
            "https:// and a host"
        )
    return url


def _get_pool(timeout: float, url: Url) -> urllib3.PoolManager:
    """The connections of this process, on the way that the environment says."""
    proxy = None
    if not urllib.request.proxy_bypass(
        f"{url.host}:{url.port or _DEFAULT_PORTS[url.scheme or '']}"
    ):
        proxies = urllib.request.getproxies()
        proxy = proxies.get(url.scheme or "") or proxies.get("all")
    with _lock:
        pool = _pools.get((timeout, proxy))
        if pool is None:
            pool = _pools[timeout, proxy] = _make_pool(timeout, proxy)
        return pool


def _make_pool(seconds: float, proxy: str | None) -> urllib3.PoolManager:
    timeout = urllib3.Timeout(connect=seconds, read=seconds)
    # The certificates that the system trusts.
    context = ssl.create_default_context()
    if proxy is None:
        return urllib3.PoolManager(maxsize=_MAX_CONNECTIONS, timeout=timeout, ssl_context=context)
    found = parse_url(proxy)
    headers = urllib3.make_headers(proxy_basic_auth=unquote(found.auth)) if found.auth else None
    return urllib3.ProxyManager(
        found._replace(auth=None).url,
        proxy_headers=headers,
        maxsize=_MAX_CONNECTIONS,
        timeout=timeout,
        ssl_context=context,
    )


def _explain(error: Exception) -> str:
    # urllib3 puts an object and its address in memory before what happened.
    return f"{type(error).__name__}: {_OBJECT.sub('', str(error))}"


def parse_retry_after(text: str | None, now: float) -> float | None:
    """The seconds that an answer asks for, as a number or until a date; None if it does not."""
    if not text:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(parsedate_to_datetime(text).timestamp() - now, 0.0)
    except ValueError:
        return None
