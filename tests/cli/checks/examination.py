"""Runs checks on a root and an environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.checks.check import Check, Outcome
from penstock.cli.checks.context import CheckContext
from penstock.cli.target import BrokerTarget
from tests.support import clean_environment


@contextmanager
def context(root: Path, port: int | None = None, **variables: Any) -> Iterator[CheckContext]:
    """A context without a penstock.toml, with only these variables.

    By default its port is unused, and its home directory is the parent of the root.
    """
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        free_port = str(unused.getsockname()[1])
    variables = {"STREAM_MANAGER_SERVER_PORT": free_port, "HOME": str(root.parent), **variables}
    environment = clean_environment(**variables)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir("/")
        for name in os.environ.keys() - environment.keys():
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        yield CheckContext(
            BrokerTarget(
                root=str(root), host=None, port=port, unix_socket=None, tls_ca=None, config=None
            )
        )


def examine(check: Check, root: Path, port: int | None = None, **variables: Any) -> Outcome:
    with context(root, port, **variables) as examined:
        return check(examined)
