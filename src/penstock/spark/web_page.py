"""Proxy for the web page of Spark, which checks the Host header.

The page answers every request to its port, so a web site could read it by DNS rebinding through
the browser of a user of this machine. Therefore Spark accepts only signed requests
(`org.apache.spark.ui.JWSFilter`), and this proxy on loopback signs the requests that it forwards.
It rejects requests whose Host header is not an address of loopback.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import logging
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

logger = logging.getLogger(__name__)

_FILTER = "org.apache.spark.ui.JWSFilter"
_LOOPBACK = "127.0.0.1"
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_TIMEOUT_SECONDS = 30.0
# Headers that concern the connection to Spark, or that the proxy writes itself.
_NOT_FORWARDED = {"connection", "content-length", "date", "server", "transfer-encoding"}


class SparkPage:
    """The web page of Spark behind a proxy. `settings` are Spark settings that require signatures.

    Call `open` after Spark has started, and `close` at the end.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._proxy: _Proxy | None = None
        self.settings = {
            "spark.ui.filters": _FILTER,
            f"spark.{_FILTER}.param.secretKey": base64.urlsafe_b64encode(self._key).decode(),
        }

    def open(self, spark_url: str) -> str:
        """Starts the proxy for the page at this address, and returns the proxy's address."""
        self._proxy = _Proxy(urlsplit(spark_url).netloc, _sign(self._key))
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        return f"http://{_LOOPBACK}:{self._proxy.server_port}"

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.shutdown()
            self._proxy.server_close()


def _sign(key: bytes) -> str:
    """Returns a JSON Web Signature (RFC 7515), which is the same for all requests."""
    signed = ".".join(map(_encode, (b'{"alg":"HS256"}', b'{"sub":"penstock"}')))
    return f"{signed}.{_encode(hmac.digest(key, signed.encode(), hashlib.sha256))}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream: str, signature: str) -> None:
        super().__init__((_LOOPBACK, 0), _Request)
        self.upstream = upstream
        self.signature = signature
        self.hosts = {f"{host}:{self.server_port}" for host in _HOSTS}


class _Request(BaseHTTPRequestHandler):
    server: _Proxy
    timeout = _TIMEOUT_SECONDS

    def do_GET(self) -> None:
        host = self.headers.get("Host", "")
        if host not in self.server.hosts:
            self.send_error(403, "The Host header is not a loopback address")
            return
        connection = http.client.HTTPConnection(self.server.upstream, timeout=_TIMEOUT_SECONDS)
        try:
            headers = {"Host": host, "Authorization": f"Bearer {self.server.signature}"}
            connection.request(self.command, self.path, headers=headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            self.send_error(502, "Spark does not respond")
            return
        finally:
            connection.close()
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in _NOT_FORWARDED:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - http.server's
        logger.debug(format, *arguments)
