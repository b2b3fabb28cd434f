"""The broker of a command: the options that select it, and the connection."""

from __future__ import annotations

import functools
import logging
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from penstock.client.blocking import StreamManagerClient
from penstock.settings import is_loopback


class BrokerTarget(NamedTuple):
    """The options that select a broker."""

    root: str | None
    host: str | None
    port: int | None
    unix_socket: str | None
    tls_ca: str | None
    config: Path | None

    def connect(self, **options: Any) -> StreamManagerClient:
        return StreamManagerClient(
            self.host,
            self.port,
            unix_socket=self.unix_socket,
            root=self.root,
            tls=self.tls_ca,
            config=self.config,
            **options,
        )

    def connect_briefly(
        self, connect_timeout: float, request_timeout: float
    ) -> StreamManagerClient:
        """Connects with short timeouts, without retries and without logs."""
        return self.connect(
            connect_timeout=connect_timeout,
            request_timeout=request_timeout,
            reconnect_timeout=0,
            # Above every level: log lines would disturb a full-screen page.
            logger=logging.Logger(__name__, logging.CRITICAL + 1),
        )

    @property
    def is_local(self) -> bool:
        """Whether the broker is on this machine."""
        return self.host is None or is_loopback(self.host)

    @property
    def serve_command(self) -> str:
        """The command that starts this broker."""
        return "penstock serve" + (f" --root {shlex.quote(self.root)}" if self.root else "")


_OPTIONS = (
    click.option("--root", metavar="DIR", help="Use the broker of this root directory."),
    click.option("--host", metavar="HOST", help="Use the broker on this host, with --port."),
    click.option(
        "--port",
        type=click.IntRange(1, 65_535),
        metavar="PORT",
        help="Use the broker on this port.",
    ),
    click.option("--unix-socket", metavar="PATH", help="Use the broker on this Unix socket."),
    click.option(
        "--tls-ca",
        metavar="FILE",
        help="Connect with TLS, and trust the CA certificates in this PEM file.",
    ),
    click.option(
        "--config",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Configuration file. By default penstock.toml in the current directory.",
    ),
)


def target_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that select a broker. The command gets them as `target`."""

    @functools.wraps(command)
    def with_target(**values: Any) -> None:
        target = BrokerTarget(**{name: values.pop(name) for name in BrokerTarget._fields})
        command(target=target, **values)

    for option in reversed(_OPTIONS):
        with_target = option(with_target)
    return with_target
