"""Verification of component tokens: requests to the nucleus, the cache, and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.broker.access import Role
from penstock.errors import ConnectFailedException, ResponseStatusCode, UnauthorizedException
from penstock.greengrass import tokens
from penstock.greengrass.tokens import ComponentTokens, NucleusError


class FakeNucleus:
    """A nucleus with some valid tokens, which records validations."""

    def __init__(self, *valid: str) -> None:
        self.valid = set(valid)
        self.validated: list[str] = []
        self.now = 0.0
        self.is_unavailable = False
        self.may_answer: asyncio.Event | None = None

    def clock(self) -> float:
        return self.now

    async def validate(self, token: str) -> bool:
        self.validated.append(token)
        if self.may_answer is not None:
            await self.may_answer.wait()
        if self.is_unavailable:
            raise NucleusError("no answer in 5 s")
        return token in self.valid


def run(nucleus: FakeNucleus, steps: Callable[[ComponentTokens], Awaitable[None]]) -> None:
    async def run_steps() -> None:
        await steps(ComponentTokens(nucleus, "own", nucleus.clock))

    asyncio.run(run_steps())


def test_component_has_full_access() -> None:
    async def steps(verifier: ComponentTokens) -> None:
        access = await verifier.verify("a")
        assert (access.role, access.sees("anything"), access.digest) == (
            Role.admin,
            True,
            None,
        )

    run(FakeNucleus("a"), steps)


def test_valid_token_is_cached_for_60_seconds() -> None:
    nucleus = FakeNucleus("a")

    async def steps(verifier: ComponentTokens) -> None:
        await verifier.verify("a")
        nucleus.now = 59.0
        await verifier.verify("a")
        assert nucleus.validated == ["a"]
        nucleus.now = 60.0
        nucleus.valid.clear()
        with pytest.raises(UnauthorizedException):
            await verifier.verify("a")

    run(nucleus, steps)


def test_rejected_token_is_validated_again() -> None:
    nucleus = FakeNucleus()

    async def steps(verifier: ComponentTokens) -> None:
        for _ in range(2):
            with pytest.raises(UnauthorizedException, match="nor the Greengrass nucleus accepts"):
                await verifier.verify("a")
        nucleus.valid.add("a")
        await verifier.verify("a")

    run(nucleus, steps)
    assert nucleus.validated == ["a"] * 3


def test_unavailable_nucleus_rejects_tokens_except_own_and_cached_ones() -> None:
    nucleus = FakeNucleus("a", "b")

    async def steps(verifier: ComponentTokens) -> None:
        await verifier.verify("a")
        nucleus.is_unavailable = True
        await verifier.verify("a")
        await verifier.verify("own")
        with pytest.raises(ConnectFailedException, match=r"nucleus: no answer in 5 s") as caught:
            await verifier.verify("b")
        assert caught.value.status == ResponseStatusCode.FailedToConnect

    run(nucleus, steps)


def test_concurrent_verifications_of_a_token_share_one_request() -> None:
    nucleus = FakeNucleus("a")

    async def steps(verifier: ComponentTokens) -> None:
        nucleus.may_answer = asyncio.Event()
        waiting = [asyncio.create_task(verifier.verify("a")) for _ in range(3)]
        while not nucleus.validated:
            await asyncio.sleep(0)
        # The first caller, which started the request, is canceled.
        waiting[0].cancel()
        nucleus.may_answer.set()
        assert [access.role for access in await asyncio.gather(*waiting[1:])] == [Role.admin] * 2

    run(nucleus, steps)
    assert nucleus.validated == ["a"]


def test_cache_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_MAX_CACHED", 2)
    nucleus = FakeNucleus("a", "b", "c")

    async def steps(verifier: ComponentTokens) -> None:
        for token in ("a", "b", "c", "c", "b", "a"):
            await verifier.verify(token)

    run(nucleus, steps)
    assert nucleus.validated == ["a", "b", "c", "a"]
