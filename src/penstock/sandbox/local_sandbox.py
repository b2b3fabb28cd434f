"""A sandbox in the current process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Self

from penstock.distribution import how_to_install
from penstock.sandbox.analytics_service import Analytics
from penstock.sandbox.call_log import CallLog
from penstock.sandbox.client import SandboxClient, SandboxError
from penstock.sandbox.dispatch import Dispatcher
from penstock.sandbox.faults import Faults
from penstock.sandbox.http_listener import HttpListener
from penstock.sandbox.http_sink import HttpSink
from penstock.sandbox.kinesis_service import Kinesis
from penstock.sandbox.s3_service import S3
from penstock.sandbox.service import Service, ServiceError
from penstock.sandbox.sitewise_service import SiteWise

_DEFAULT_KEEP_BYTES = 256 * 1024 * 1024
_POLL_SECONDS = 0.05


class Sandbox(SandboxClient):
    """The services on one loopback port, in threads of this process, and a client for them.

    It listens from `start` to `stop`, or within a `with` statement. After a restart it has the same
    port and the same records; while it is stopped, connections are refused. `keep_bytes` limits the
    bytes that are stored for each stream, channel, property and HTTP sink.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        kinesis_streams: Mapping[str, int] | None = None,
        buckets: Iterable[str] = (),
        create_streams: bool = False,
        large_records: bool = False,
        keep_bytes: int = _DEFAULT_KEEP_BYTES,
    ) -> None:
        super().__init__("")
        self._port = port
        self._kinesis_streams = kinesis_streams or {}
        self._buckets = buckets
        self._creates_streams = create_streams
        self._has_large_records = large_records
        self._keep_bytes = keep_bytes
        self._faults = Faults(time.monotonic)
        self._dispatcher: Dispatcher | None = None
        self._server: HttpListener | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts listening. Raises SandboxError on failure."""
        if self._dispatcher is None:
            self._dispatcher = self._make_dispatcher()
        try:
            self._server = HttpListener(self._dispatcher, self._port)
        except OSError as error:
            raise SandboxError(f"cannot listen on port {self._port}: {error.strerror}") from None
        self._port = self._server.port
        self.url = f"http://127.0.0.1:{self._port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), daemon=True
        )
        self._thread.start()

    def _make_dispatcher(self) -> Dispatcher:
        kinesis = Kinesis(
            self._keep_bytes,
            time.time,
            create_streams=self._creates_streams,
            large_records=self._has_large_records,
        )
        try:
            s3 = S3(self._keep_bytes)
            for name, shards in self._kinesis_streams.items():
                kinesis.create_stream(name, shards)
            for bucket in self._buckets:
                s3.create_bucket(bucket)
        except ImportError as error:
            raise SandboxError(
                f"the sandbox needs moto ({error}): {how_to_install('sandbox')}"
            ) from None
        except ServiceError as error:
            raise SandboxError(error.message) from None
        services: list[Service] = [kinesis, s3]
        services += [kind(self._keep_bytes) for kind in (SiteWise, Analytics, HttpSink)]
        return Dispatcher({service.name: service for service in services}, self._faults, CallLog())

    def stop(self) -> None:
        """Closes the port and every connection, and turns all faults off.

        Hanging calls end without a response.
        """
        if self._server is None or self._thread is None:
            return
        server, self._server = self._server, None
        server.shutdown()
        server.close_connections()
        server.server_close()
        self._faults.clear()
        self._thread.join()
