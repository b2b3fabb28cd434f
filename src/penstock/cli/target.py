"""The broker that a command talks to: the options that name it, and a client of it."""

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


class Target(NamedTuple):
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
        """A client that soon says when nobody is there, and logs nothing."""
        return self.connect(
            connect_timeout=connect_timeout,
            request_timeout=request_timeout,
            reconnect_timeout=0,
            # Above every level: a line of the log would stand in the middle of the screen.
            logger=logging.Logger(__name__, logging.CRITICAL + 1),
        )

    @property
    def is_here(self) -> bool:
        """Whether it would be a broker of this machine."""
        return self.host is None or is_loopback(self.host)

    @property
    def serve_command(self) -> str:
        """What starts the broker that is not there."""
        return "penstock serve" + (f" --root {shlex.quote(self.root)}" if self.root else "")


_OPTIONS = (
    click.option("--root", metavar="DIR", help="The broker that serves this directory."),
    click.option("--host", help="The broker on this host, with --port."),
    click.option("--port", type=click.IntRange(1, 65_535), help="The broker on this port."),
    click.option("--unix-socket", metavar="PATH", help="The broker on this Unix socket."),
    click.option("--tls-ca", metavar="FILE", help="Speak TLS; the PEM file says whom to trust."),
    click.option(
        "--config",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="A penstock.toml; the one in this directory by default.",
    ),
)


def target_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which broker; the command gets them as `target`."""

    @functools.wraps(command)
    def with_target(**values: Any) -> None:
        target = Target(**{name: values.pop(name) for name in Target._fields})
        command(target=target, **values)

    for option in reversed(_OPTIONS):
        with_target = option(with_target)
    return with_target
