"""One sandbox for all tests of the package, and the environment with its endpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.pipeline.destinations import aws
from penstock.sandbox.local_sandbox import Sandbox
from tests.pipeline.destinations.suite import HARNESSES, Harness


def _clean(patch: pytest.MonkeyPatch, directory: Path) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            patch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        patch.setenv(name, str(directory / "none"))
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    aws.forget_clients()


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An environment without AWS variables, AWS files and proxies, and no cached clients."""
    _clean(monkeypatch, tmp_path)
    yield
    aws.forget_clients()


@pytest.fixture(scope="package")
def _running_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with pytest.MonkeyPatch.context() as patch, Sandbox(create_streams=True) as running:
        _clean(patch, tmp_path_factory.mktemp("aws"))
        for name, value in running.variables.items():
            # Tests show that this variable is not needed.
            if name != "AWS_DISABLE_HOST_PREFIX_INJECTION":
                patch.setenv(name, value)
        yield running
    aws.forget_clients()


@pytest.fixture
def sandbox(_running_sandbox: Sandbox) -> Iterator[Sandbox]:
    """All services, at the endpoints of the environment, without faults."""
    _running_sandbox.reset_calls()
    yield _running_sandbox
    _running_sandbox.clear_faults()


def _name(kind: type[Harness]) -> str:
    return kind.__name__.removesuffix("Harness")


def _make(request: pytest.FixtureRequest, sandbox: Sandbox, directory: Path) -> Harness:
    made: Harness = request.param(sandbox, directory)
    return made


@pytest.fixture(params=HARNESSES, ids=_name)
def harness(request: pytest.FixtureRequest, sandbox: Sandbox, tmp_path: Path) -> Harness:
    return _make(request, sandbox, tmp_path)


@pytest.fixture(params=[kind for kind in HARNESSES if kind.can_fail_partly], ids=_name)
def partly_failing(request: pytest.FixtureRequest, sandbox: Sandbox, tmp_path: Path) -> Harness:
    """A destination whose calls may fail for some of their messages."""
    return _make(request, sandbox, tmp_path)


@pytest.fixture(params=[kind for kind in HARNESSES if kind.bad], ids=_name)
def rejecting(request: pytest.FixtureRequest, sandbox: Sandbox, tmp_path: Path) -> Harness:
    """A destination that does not accept every message."""
    return _make(request, sandbox, tmp_path)


@pytest.fixture(params=[kind for kind in HARNESSES if kind.service], ids=_name)
def remote(request: pytest.FixtureRequest, sandbox: Sandbox, tmp_path: Path) -> Harness:
    """A destination behind a network connection."""
    return _make(request, sandbox, tmp_path)
