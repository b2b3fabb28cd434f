"""Patients for the checks, and what a check finds about them."""

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
from penstock.cli.target import Target
from tests.support import clean_environment


@contextmanager
def context(root: Path, port: int | None = None, **variables: Any) -> Iterator[CheckContext]:
    """One where no penstock.toml lies about, with no variables but these.

    Unless they say otherwise, nobody listens on its port, and nothing is in its home.
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
            Target(root=str(root), host=None, port=port, unix_socket=None, tls_ca=None, config=None)
        )


def examine(check: Check, root: Path, port: int | None = None, **variables: Any) -> Outcome:
    with context(root, port, **variables) as examined:
        return check(examined)
