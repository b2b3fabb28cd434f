"""Calls to the nucleus with the AWS client, against a server with its protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.greengrass.nucleus import Nucleus
from penstock.greengrass.tokens import NucleusError
from tests.greengrass.ipc_server import STREAM_MANAGER, NucleusServer
from tests.support import TIMEOUT_S


@asynccontextmanager
async def reach(
    server: NucleusServer, token: str = "svcuid", timeout: float = TIMEOUT_S
) -> AsyncIterator[Nucleus]:
    nucleus = Nucleus(str(server.path), token, timeout)
    try:
        yield nucleus
    finally:
        await nucleus.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ipc.socket"


def test_only_tokens_of_components_are_valid(path: Path) -> None:
    async def ask() -> list[bool]:
        async with reach(server) as nucleus:
            return [await nucleus.validate(token) for token in ("press-token", "other", "")]

    with NucleusServer(path, press="press-token") as server:
        assert asyncio.run(ask()) == [True, False, False]


def test_concurrent_validations_share_a_connection(path: Path) -> None:
    async def ask() -> list[bool]:
        async with reach(server) as nucleus:
            return await asyncio.gather(*(nucleus.validate("press-token") for _ in range(10)))

    with NucleusServer(path, press="press-token") as server:
        assert asyncio.run(ask()) == [True] * 10
        assert server.accepted == 1


def test_values_are_published_and_the_state_is_reported(path: Path) -> None:
    async def send() -> None:
        async with reach(server) as nucleus:
            await nucleus.publish({"port": 18088})
            await nucleus.report_running()

    with NucleusServer(path) as server:
        asyncio.run(send())

    assert server.configurations == {STREAM_MANAGER: {"port": 18088}}
    assert server.states == [(STREAM_MANAGER, "RUNNING")]


def test_nucleus_is_reconnected_after_it_was_unavailable(path: Path) -> None:
    async def ask() -> None:
        async with reach(server) as nucleus:
            with server:
                assert await nucleus.validate("svcuid")
            for _ in range(2):
                with pytest.raises(NucleusError):
                    await nucleus.validate("svcuid")
            with server:
                assert await nucleus.validate("svcuid")

    server = NucleusServer(path)
    asyncio.run(ask())


def test_validation_times_out(path: Path) -> None:
    async def ask() -> None:
        async with reach(server, timeout=0.05) as nucleus:
            with pytest.raises(NucleusError, match=r"no answer in 0\.05 s"):
                await nucleus.validate("svcuid")

    with NucleusServer(path) as server:
        server.is_silent = True
        asyncio.run(ask())


def test_denied_component_is_an_error(path: Path) -> None:
    async def ask() -> None:
        async with reach(server, "unknown-token") as nucleus:
            with pytest.raises(NucleusError, match="denied"):
                await nucleus.validate("svcuid")
        async with reach(server, "press-token") as nucleus:
            with pytest.raises(NucleusError, match="not authorized: press is not"):
                await nucleus.validate("svcuid")

    with NucleusServer(path, press="press-token") as server:
        asyncio.run(ask())


def test_error_of_the_nucleus_is_raised(path: Path) -> None:
    async def send() -> None:
        async with reach(server) as nucleus:
            with pytest.raises(NucleusError, match="not now"):
                await nucleus.publish({"port": 1})

    with NucleusServer(path) as server:
        server.failures = 1
        asyncio.run(send())
