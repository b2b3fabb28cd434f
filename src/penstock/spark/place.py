"""The broker's address for a query, discovered once on the driver and passed to every task.

A task may run on another machine or in another environment, where discovery would find another
broker, or none.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from penstock.client.backoff import delays
from penstock.client.endpoint import EndpointOptions, try_token
from penstock.client.failures import is_retryable
from penstock.client.internal import InternalClient
from penstock.errors import ConnectFailedException, SettingError
from penstock.spark.options import BrokerOptions

logger = logging.getLogger(__name__)

_TLS_VARIABLE = "PENSTOCK_TLS_CA"
_WARNING_DELAY_SECONDS = 2.0

T = TypeVar("T")


class Place(NamedTuple):
    """The address of a broker, in plain values that can be pickled.

    With `wait`, both methods retry for `reconnect_timeout`, because the broker may be restarting.
    """

    # For the driver's machine. With a root, it finds a broker that restarted on another port.
    nearby: EndpointOptions
    # For other machines.
    remote: EndpointOptions
    machine: str
    reconnect_timeout: float

    @classmethod
    def find(cls, options: BrokerOptions, wait: bool = False) -> Self:
        """Discovers the broker without connecting; SettingError or ConnectionError on failure."""
        return _retry(options.reconnect_timeout if wait else 0, lambda: cls._find(options))

    @classmethod
    def _find(cls, options: BrokerOptions) -> Self:
        given = options.endpoint_options()
        if given.tls is None:
            given = given._replace(tls=os.environ.get(_TLS_VARIABLE) or None)
        found = given.find(os.environ)
        if found.tls and not given.tls and not given.root:
            raise SettingError(
                f"tasks cannot find the certificate of the broker on {found}: set option tls to "
                "the certificate, or option root to the broker's root directory"
            )
        # Without TLS it is False, as None makes a task read its own environment.
        tls = given.tls if found.tls else False
        remote = EndpointOptions(found.host, found.port, found.unix_socket, found.token, tls)
        nearby = remote
        if given.root:
            root = Path(given.root).absolute()
            # The token of a root may be rotated, so each connection reads it again.
            token = None if found.token == try_token(root) else found.token
            nearby = given._replace(token=token, root=root)
        return cls(nearby, remote, socket.gethostname(), options.reconnect_timeout)

    def __repr__(self) -> str:
        # Without the token, as Spark may log this.
        return f"<Place {self.remote.unix_socket or f'{self.remote.host}:{self.remote.port}'}>"

    def connect(self, wait: bool = False) -> InternalClient:
        return _retry(self.reconnect_timeout if wait else 0, self._connect)

    def _connect(self) -> InternalClient:
        endpoint = self.nearby if socket.gethostname() == self.machine else self.remote
        return InternalClient(
            endpoint.host,
            endpoint.port,
            token=endpoint.token,
            tls=endpoint.tls,
            unix_socket=endpoint.unix_socket,
            root=endpoint.root,
            reconnect_timeout=self.reconnect_timeout,
        )


def _retry(timeout: float, attempt: Callable[[], T]) -> T:
    began = time.monotonic()
    is_warned = False
    for pause in delays():
        try:
            return attempt()
        except (OSError, ConnectFailedException) as error:
            waited = time.monotonic() - began
            if not is_retryable(error) or waited + pause > timeout:
                raise
            # Without a warning, a query with a wrong port would seem to hang. The delay avoids
            # warnings while a broker starts.
            if waited > min(_WARNING_DELAY_SECONDS, timeout / 10) and not is_warned:
                logger.warning("%s; retrying for %g s", error, timeout)
                is_warned = True
        time.sleep(pause)
    raise AssertionError("delays do not end")
