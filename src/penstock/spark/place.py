"""Where the broker of a query is: found once, on the driver, and handed to every task.

A task may run on another machine, in another environment: what it would find there is another
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
_QUIET_SECONDS = 2.0

T = TypeVar("T")


class Place(NamedTuple):
    """The way to a broker, in plain values that can be pickled.

    With `wait`, both methods retry for `reconnect_timeout`: the broker may be restarting.
    """

    # From the machine on which it was found: with a root it leads to the broker also after a
    # restart on another port.
    nearby: EndpointOptions
    # From any other.
    remote: EndpointOptions
    machine: str
    reconnect_timeout: float

    @classmethod
    def find(cls, options: BrokerOptions, wait: bool = False) -> Self:
        """SettingError or ConnectionError if the options lead nowhere; nothing is connected."""
        return _try_for(options.reconnect_timeout if wait else 0, lambda: cls._find(options))

    @classmethod
    def _find(cls, options: BrokerOptions) -> Self:
        said = options.endpoint_options()
        if said.tls is None:
            said = said._replace(tls=os.environ.get(_TLS_VARIABLE) or None)
        found = said.find(os.environ)
        if found.tls and not said.tls and not said.root:
            raise SettingError(
                f"the broker on {found} has a certificate that tasks cannot know: name it with "
                "option tls, or the broker's directory with option root"
            )
        # No TLS is said as well, or a task would look for it in its own environment.
        tls = said.tls if found.tls else False
        remote = EndpointOptions(found.host, found.port, found.unix_socket, found.token, tls)
        nearby = remote
        if said.root:
            root = Path(said.root).absolute()
            # A token from the root is read again for each connection: it may have been rotated.
            token = None if found.token == try_token(root) else found.token
            nearby = said._replace(token=token, root=root)
        return cls(nearby, remote, socket.gethostname(), options.reconnect_timeout)

    def __repr__(self) -> str:
        # Without the token: Spark writes what it hands around into logs.
        return f"<Place {self.remote.unix_socket or f'{self.remote.host}:{self.remote.port}'}>"

    def connect(self, wait: bool = False) -> InternalClient:
        return _try_for(self.reconnect_timeout if wait else 0, self._connect)

    def _connect(self) -> InternalClient:
        way = self.nearby if socket.gethostname() == self.machine else self.remote
        return InternalClient(
            way.host,
            way.port,
            token=way.token,
            tls=way.tls,
            unix_socket=way.unix_socket,
            root=way.root,
            reconnect_timeout=self.reconnect_timeout,
        )


def _try_for(seconds: float, attempt: Callable[[], T]) -> T:
    began = time.monotonic()
    told = False
    for pause in delays():
        try:
            return attempt()
        except (OSError, ConnectFailedException) as error:
            waited = time.monotonic() - began
            if not is_retryable(error) or waited + pause > seconds:
                raise
            # A wrong port would otherwise look like a query that does nothing. A short wait for a
            # broker that is starting is not worth a warning.
            if waited > min(_QUIET_SECONDS, seconds / 10) and not told:
                logger.warning("%s; trying again for %g s", error, seconds)
                told = True
        time.sleep(pause)
    raise AssertionError("delays do not end")
