"""What both clients are made with, and say of where they are."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from pathlib import Path

from penstock.client.client_protocol import ServerInfo
from penstock.client.endpoint import DEFAULT_HOST, Endpoint, Search, Tls
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
        """Everything is optional; what is not passed is looked for.

        host, port, unix_socket: where the server is. By default as STREAM_MANAGER_SERVER_HOST and
            STREAM_MANAGER_SERVER_PORT say, or penstock.toml, or the broker of this machine.
        connect_timeout, request_timeout: seconds for a connection, and for each operation; None
            for no limit.
        token: by default AWS_CONTAINER_AUTHORIZATION_TOKEN, or the one in penstock.toml, or that
            of the broker's root if it may be read.
        tls: True, a PEM file with certificates to trust, or an SSLContext.
        root: talk to the broker that serves this directory.
        config: a penstock.toml; the one in this directory by default.
        reconnect_timeout: seconds for which an operation tries to get a lost connection back;
            0 for one attempt.
        """
        self.connect_timeout = NO_LIMIT if connect_timeout is None else connect_timeout
        self.request_timeout = NO_LIMIT if request_timeout is None else request_timeout
        self.reconnect_timeout = reconnect_timeout
        self.logger = logger
        self._search = Search(host, port, unix_socket, token, tls, root, config)
        self._endpoint = Endpoint(DEFAULT_HOST, 0)
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """What a kind of client does when it is made."""

    def __repr__(self) -> str:
        state = "" if self.connected else ", not connected"
        return f"<{type(self).__name__} {self.address}{state}>"

    def _find_endpoint(self) -> Endpoint:
        return self._search.find(os.environ)

    def _note_endpoint(self, endpoint: Endpoint) -> None:
        """It is connected there now, and comes back to the same: no other is a substitute."""
        self._endpoint = endpoint
        if endpoint.root is not None:
            # It may have another port then.
            self._search = self._search._replace(root=endpoint.root)
        else:
            host, port, unix_socket = endpoint[:3]
            self._search = self._search._replace(host=host, port=port, unix_socket=unix_socket)

    @property
    @abstractmethod
    def connected(self) -> bool: ...

    @property
    @abstractmethod
    def server(self) -> ServerInfo:
        """What the server said of itself."""

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
