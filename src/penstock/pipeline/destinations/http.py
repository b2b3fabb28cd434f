"""HTTP: a POST for each message, or for a batch of messages as JSON."""

from __future__ import annotations

import functools
import os
import re
import ssl
import time
import urllib.request
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import Url, parse_url

from penstock import __version__
from penstock.model import ExportFormat, HTTPConfig
from penstock.pipeline.destinations.destination import (
    CallResult,
    Destination,
    DestinationCall,
    ExportContext,
    Messages,
    RefusedError,
    UnavailableError,
    parse_retry_after,
)

_MAX_MESSAGES = 500
# Equal to the maximum number of jobs of a task.
_MAX_CONNECTIONS = 256
_MAX_ANSWER_BYTES = 64 * 1024
_SHOWN_CHARACTERS = 200
_SHOWN_BYTES = 4 * _SHOWN_CHARACTERS
_DEFAULT_PORTS = {"http": 80, "https": 443}

# These statuses, and all from 500 up, are retried.
_TEMPORARY_STATUSES = {408, 425, 429}
# The URI or the credentials are wrong: smaller calls would be refused as well.
_ENDPOINT_STATUSES = {401, 403, 404, 405}

# Error texts of urllib3 begin with an object and its address in memory.
_OBJECT = re.compile(r"^(<[^>]* at 0x[^>]*>|\S+\(host=[^)]*\)): ")


class _HttpMessage(msgspec.Struct, rename="camel", gc=False):
    """A message as JSON, with its payload in base64."""

    stream_name: str
    sequence_number: int
    ingest_time: int
    payload: bytes


class _Endpoint(NamedTuple):
    pool: urllib3.PoolManager
    url: str
    headers: dict[str, str]
    # The URI in error texts, without the parts that may be secret.
    shown: str


class HttpDestination(Destination):
    def __init__(self, export: ExportContext) -> None:
        assert isinstance(export.config, HTTPConfig)
        self._uri = export.config.uri
        self._timeout = export.timeout
        self._is_batched = export.config.export_format is ExportFormat.JSON_BATCHED
        self.max_messages = 1
        if self._is_batched:
            self.max_messages = min(export.config.batch_size or _MAX_MESSAGES, _MAX_MESSAGES)

    def prepare(self, messages: Messages) -> DestinationCall:
        numbers = messages.numbers
        body = messages.payloads[0]
        if self._is_batched:
            rows = zip(numbers, messages.ingest_times, messages.payloads, strict=True)
            body = msgspec.json.encode([_HttpMessage(messages.stream, *row) for row in rows])
        return DestinationCall(len(numbers), numbers, body, len(body))

    def send(self, call: DestinationCall) -> CallResult:
        pool, url, headers, shown = self._endpoint
        try:
            response = pool.request(
                "POST",
                url,
                body=call.content,
                headers=headers,
                redirect=False,
                retries=False,
                preload_content=False,
            )
            # Closes the connection if the answer is longer, because unread bytes prevent its reuse.
            with response:
                content = response.read(_MAX_ANSWER_BYTES, decode_content=False)
        except (HTTPError, OSError) as error:
            text = f"{type(error).__name__}: {_OBJECT.sub('', str(error))}"
            raise UnavailableError(f"POST {shown}: {text}") from None
        status = response.status
        if 200 <= status < 300:
            return CallResult()
        text = content[:_SHOWN_BYTES].decode("utf-8", "replace")[:_SHOWN_CHARACTERS].strip()
        reason = f"POST {shown}: {status} {response.reason or ''}".rstrip()
        reason = f"{reason}: {text}" if text else reason
        if status >= 500 or status in _TEMPORARY_STATUSES:
            retry_after = parse_retry_after(response.headers.get("Retry-After"), time.time())
            raise UnavailableError(reason, retry_after=retry_after)
        if status >= 400 and status not in _ENDPOINT_STATUSES:
            raise RefusedError(reason)
        return CallResult(refused=dict.fromkeys(call.numbers, reason))

    @functools.cached_property
    def _endpoint(self) -> _Endpoint:
        """The parsed URI. Raises UnavailableError if it is not valid."""
        url = Url()
        with suppress(LocationParseError):
            url = parse_url(self._uri)
        if url.scheme not in _DEFAULT_PORTS or not url.host:
            raise UnavailableError(
                f"uri has the scheme {url.scheme} and the host {url.host}: expected http:// or "
                "https:// and a host"
            )
        proxy = None
        if not urllib.request.proxy_bypass(f"{url.host}:{url.port or _DEFAULT_PORTS[url.scheme]}"):
            proxies = urllib.request.getproxies()
            proxy = proxies.get(url.scheme) or proxies.get("all")
        kind = "application/json" if self._is_batched else "application/octet-stream"
        headers = {"Content-Type": kind, "User-Agent": f"penstock/{__version__}"}
        if url.auth:
            headers |= urllib3.make_headers(basic_auth=unquote(url.auth))
        target = url._replace(auth=None, fragment=None)
        return _Endpoint(
            _get_pool(self._timeout, proxy), target.url, headers, target._replace(query=None).url
        )


@functools.cache
def _get_pool(timeout: float, proxy: str | None) -> urllib3.PoolManager:
    """The connection pool, which all threads share."""
    options: dict[str, Any] = {
        "maxsize": _MAX_CONNECTIONS,
        "timeout": timeout,
        # With the certificates that the system trusts.
        "ssl_context": ssl.create_default_context(),
    }
    if proxy is None:
        return urllib3.PoolManager(**options)
    url = parse_url(proxy)
    if url.auth:
        options["proxy_headers"] = urllib3.make_headers(proxy_basic_auth=unquote(url.auth))
    return urllib3.ProxyManager(url._replace(auth=None).url, **options)


# A child process must not use the connections of its parent.
os.register_at_fork(after_in_child=_get_pool.cache_clear)
