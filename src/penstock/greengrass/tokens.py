"""The tokens of components: the nucleus knows them, and what it said holds for a while."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Protocol

from penstock.broker.access import Access, Role
from penstock.errors import ConnectFailedException, ResponseStatusCode, UnauthorizedException
from penstock.store.rows import TokenRow, digest_token

# As in the original: every component may do everything.
COMPONENT = Access(TokenRow("greengrass", Role.admin, ("*",), 0))

_GOOD_SECONDS = 60.0
_MAX_REMEMBERED = 1024


class NucleusError(Exception):
    """The nucleus does not answer, or not what was asked."""


class Validator(Protocol):
    async def validate(self, token: str) -> bool:
        """Whether a token is good; NucleusError if that cannot be told."""


class ComponentTokens:
    """A verifier for the authenticator. Good tokens are remembered, for so long and so many.

    A token that is refused is asked for again each time: its component may just have come.
    """

    def __init__(
        self, nucleus: Validator, own_token: str, clock: Callable[[], float] | None = None
    ) -> None:
        self._nucleus = nucleus
        # Known to what this component runs: its pipeline works while the nucleus is away.
        self._own_token = own_token.encode()
        self._clock = clock or asyncio.get_running_loop().time
        self._good_until: dict[bytes, float] = {}
        self._questions: dict[bytes, asyncio.Task[bool]] = {}

    async def verify(self, secret: str) -> Access:
        if hmac.compare_digest(secret.encode(), self._own_token):
            return COMPONENT
        digest = digest_token(secret)
        if self._good_until.get(digest, 0.0) > self._clock():
            return COMPONENT
        try:
            is_good = await self._ask(digest, secret)
        except NucleusError as error:
            raise ConnectFailedException(
                f"the token cannot be checked with the Greengrass nucleus: {error}",
                ResponseStatusCode.FailedToConnect,
            ) from None
        if not is_good:
            raise UnauthorizedException(
                "the token is known neither to this server nor to the Greengrass nucleus"
            )
        self._remember(digest)
        return COMPONENT

    async def _ask(self, digest: bytes, secret: str) -> bool:
        """All who come with the same token at once wait for the same answer."""
        question = self._questions.get(digest)
        if question is None:
            question = asyncio.create_task(self._nucleus.validate(secret))
            self._questions[digest] = question
            question.add_done_callback(lambda _: self._questions.pop(digest, None))
        # Another one may still wait for it when this one is gone.
        return await asyncio.shield(question)

    def _remember(self, digest: bytes) -> None:
        self._good_until.pop(digest, None)
        if len(self._good_until) >= _MAX_REMEMBERED:
            # The first one is the oldest.
            del self._good_until[next(iter(self._good_until))]
        self._good_until[digest] = self._clock() + _GOOD_SECONDS
