"""The tokens of components: who is asked, how often, and what is told when nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.broker.access import Role
from penstock.errors import ConnectFailedException, ResponseStatusCode, UnauthorizedException
from penstock.greengrass import tokens
from penstock.greengrass.tokens import ComponentTokens, NucleusError


class Answers:
    """A nucleus that knows some tokens, and counts how often it is asked."""

    def __init__(self, *good: str) -> None:
        self.good = set(good)
        self.asked: list[str] = []
        self.now = 0.0
        self.is_away = False
        self.may_answer: asyncio.Event | None = None

    def clock(self) -> float:
        return self.now

    async def validate(self, token: str) -> bool:
        self.asked.append(token)
        if self.may_answer is not None:
            await self.may_answer.wait()
        if self.is_away:
            raise NucleusError("no answer in 5 s")
        return token in self.good


def run(nucleus: Answers, steps: Callable[[ComponentTokens], Awaitable[None]]) -> None:
    async def go() -> None:
        await steps(ComponentTokens(nucleus, "own", nucleus.clock))

    asyncio.run(go())


def test_a_component_may_do_everything() -> None:
    async def steps(verifier: ComponentTokens) -> None:
        access = await verifier.verify("a")
        assert (access.role, access.sees("anything"), access.digest) == (
            Role.admin,
            True,
            None,
        )

    run(Answers("a"), steps)


def test_a_good_token_is_remembered_for_a_while() -> None:
    nucleus = Answers("a")

    async def steps(verifier: ComponentTokens) -> None:
        await verifier.verify("a")
        nucleus.now = 59.0
        await verifier.verify("a")
        assert nucleus.asked == ["a"]
        nucleus.now = 60.0
        nucleus.good.clear()
        with pytest.raises(UnauthorizedException):
            await verifier.verify("a")

    run(nucleus, steps)


def test_a_refused_token_is_asked_for_each_time() -> None:
    nucleus = Answers()

    async def steps(verifier: ComponentTokens) -> None:
        for _ in range(2):
            with pytest.raises(UnauthorizedException, match="nor to the Greengrass nucleus"):
                await verifier.verify("a")
        nucleus.good.add("a")
        await verifier.verify("a")

    run(nucleus, steps)
    assert nucleus.asked == ["a"] * 3


def test_a_nucleus_that_is_away_is_a_clear_refusal_but_for_our_own_and_remembered_tokens() -> None:
    nucleus = Answers("a", "b")

    async def steps(verifier: ComponentTokens) -> None:
        await verifier.verify("a")
        nucleus.is_away = True
        await verifier.verify("a")
        await verifier.verify("own")
        with pytest.raises(ConnectFailedException, match=r"nucleus: no answer in 5 s") as caught:
            await verifier.verify("b")
        assert caught.value.status == ResponseStatusCode.FailedToConnect

    run(nucleus, steps)


def test_who_comes_with_the_same_token_waits_for_the_same_answer() -> None:
    nucleus = Answers("a")

    async def steps(verifier: ComponentTokens) -> None:
        nucleus.may_answer = asyncio.Event()
        waiting = [asyncio.create_task(verifier.verify("a")) for _ in range(3)]
        while not nucleus.asked:
            await asyncio.sleep(0)
        # The first one, who asked, goes away.
        waiting[0].cancel()
        nucleus.may_answer.set()
        assert [access.role for access in await asyncio.gather(*waiting[1:])] == [Role.admin] * 2

    run(nucleus, steps)
    assert nucleus.asked == ["a"]


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_MAX_REMEMBERED", 2)
    nucleus = Answers("a", "b", "c")

    async def steps(verifier: ComponentTokens) -> None:
        for token in ("a", "b", "c", "c", "b", "a"):
            await verifier.verify(token)

    run(nucleus, steps)
    assert nucleus.asked == ["a", "b", "c", "a"]
