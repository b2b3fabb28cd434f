"""The base class of both clients: their options and their endpoint."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from pathlib import Path

from penstock.client.client_protocol import ServerInfo
from penstock.client.endpoint import DEFAULT_HOST, Endpoint, EndpointOptions, Tls
from penstock.client.failures import NO_LIMIT


class ClientBase(ABC):
    def __init__(
        self,
        host: str | None = None,
        port: int | str | None = None,
        connect_timeout: float | None = 3,
        request_timeout: float | None = 60,
        logger: logging.Logger = logging.getLogger("StreamManagerClient"),  # noqa: B008 - the SDK's
        *,
        token: str | None = None,
        tls: Tls | None = None,
        unix_socket: str | None = None,
        root: str | Path | None = None,
        config: str | Path | None = None,
        reconnect_timeout: float = 10,
    ) -> None:
        """All arguments are optional.

        host, port, unix_socket: the server's address. The default is STREAM_MANAGER_SERVER_HOST
            and STREAM_MANAGER_SERVER_PORT, then penstock.toml, then the broker of this machine.
        connect_timeout, request_timeout: seconds for a connection, and for each operation; None
            for no limit.
        token: the default is AWS_CONTAINER_AUTHORIZATION_TOKEN, then penstock.toml, then the
            token in the broker's root, if this user may read it.
        tls: True, a PEM file with trusted certificates, or an SSLContext.
        root: connect to the broker that serves this directory.
        config: a penstock.toml; the default is the one in the current directory.
        reconnect_timeout: seconds for which an operation retries to reconnect; 0 for one attempt.
        """
        self.connect_timeout = NO_LIMIT if connect_timeout is None else connect_timeout
        self.request_timeout = NO_LIMIT if request_timeout is None else request_timeout
        self.reconnect_timeout = reconnect_timeout
        self.logger = logger
        self._endpoint_options = EndpointOptions(host, port, unix_socket, token, tls, root, config)
        self._endpoint = Endpoint(DEFAULT_HOST, 0)
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Initializes the subclass."""

    def __repr__(self) -> str:
        state = "" if self.connected else ", not connected"
        return f"<{type(self).__name__} {self.address}{state}>"

    def _find_endpoint(self) -> Endpoint:
        return self._endpoint_options.find(os.environ)

    def _note_endpoint(self, endpoint: Endpoint) -> None:
        """Remembers the connected endpoint: a reconnect must not go to another broker."""
        self._endpoint = endpoint
        if endpoint.root is not None:
            # A restarted broker may listen on another port, so the root identifies it.
            self._endpoint_options = self._endpoint_options._replace(root=endpoint.root)
        else:
            host, port, unix_socket = endpoint[:3]
            self._endpoint_options = self._endpoint_options._replace(
                host=host, port=port, unix_socket=unix_socket
            )

    @property
    @abstractmethod
    def connected(self) -> bool: ...

    @property
    @abstractmethod
    def server(self) -> ServerInfo:
        """The server's version and limits."""

    @property
    def address(self) -> str:
        """The address of the server."""
        return str(self._endpoint)

    @property
    def host(self) -> str:
        return self._endpoint.host

    @property
    def port(self) -> int:
        return self._endpoint.port

    @property
    def auth_token(self) -> str:
        return self._endpoint.token
