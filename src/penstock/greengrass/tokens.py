"""Verifies the tokens of components with the nucleus, and caches valid tokens."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Protocol

from penstock.broker.access import Access, Role
from penstock.errors import ConnectFailedException, ResponseStatusCode, UnauthorizedException
from penstock.store.rows import TokenRow, digest_token

# As in AWS Stream Manager, every component has full access.
COMPONENT = Access(TokenRow("greengrass", Role.admin, ("*",), 0))

_CACHE_SECONDS = 60.0
_MAX_CACHED = 1024


class NucleusError(Exception):
    """The nucleus did not answer, or answered with an error."""


class Validator(Protocol):
    async def validate(self, token: str) -> bool:
        """Whether a token is valid; NucleusError if the nucleus cannot verify it."""


class ComponentTokens:
    """A verifier for the authenticator, which caches a limited number of valid tokens.

    A rejected token is verified again each time, because its component may be new.
    """

    def __init__(
        self, nucleus: Validator, own_token: str, clock: Callable[[], float] | None = None
    ) -> None:
        self._nucleus = nucleus
        # The pipeline uses this token, and so works while the nucleus is unavailable.
        self._own_token = own_token.encode()
        self._clock = clock or asyncio.get_running_loop().time
        # Expiry times by the digests of valid tokens, oldest first.
        self._cache: dict[bytes, float] = {}
        self._pending: dict[bytes, asyncio.Task[bool]] = {}

    async def verify(self, secret: str) -> Access:
        if hmac.compare_digest(secret.encode(), self._own_token):
            return COMPONENT
        digest = digest_token(secret)
        if self._cache.get(digest, 0.0) > self._clock():
            return COMPONENT
        try:
            is_valid = await self._validate(digest, secret)
        except NucleusError as error:
            raise ConnectFailedException(
                f"cannot verify the token with the Greengrass nucleus: {error}",
                ResponseStatusCode.FailedToConnect,
            ) from None
        if not is_valid:
            raise UnauthorizedException(
                "neither this server nor the Greengrass nucleus accepts the token"
            )
        self._add_to_cache(digest)
        return COMPONENT

    async def _validate(self, digest: bytes, secret: str) -> bool:
        """Validates a token. Concurrent calls with one token share one request."""
        pending = self._pending.get(digest)
        if pending is None:
            pending = asyncio.create_task(self._nucleus.validate(secret))
            self._pending[digest] = pending
            pending.add_done_callback(lambda _: self._pending.pop(digest, None))
        # A canceled caller must not cancel the request of other callers.
        return await asyncio.shield(pending)

    def _add_to_cache(self, digest: bytes) -> None:
        self._cache.pop(digest, None)
        if len(self._cache) >= _MAX_CACHED:
            # Evicts the oldest entry.
            del self._cache[next(iter(self._cache))]
        self._cache[digest] = self._clock() + _CACHE_SECONDS
