"""Runs the broker as a Greengrass component: verifies tokens and announces the port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.server import Broker
from penstock.client.backoff import delays
from penstock.distribution import how_to_install
from penstock.greengrass.tokens import ComponentTokens, NucleusError

if TYPE_CHECKING:
    from penstock.greengrass.nucleus import Nucleus

logger = logging.getLogger(__name__)

SOCKET_VARIABLE = "AWS_GG_NUCLEUS_DOMAIN_SOCKET_FILEPATH_FOR_COMPONENT"
TOKEN_VARIABLE = "SVCUID"  # noqa: S105 - a variable's name
# The key of the component's configuration that has the port for other components.
PORT_KEY = "port"

# Less than the timeout of a handshake, so that the client gets the reason of a failure.
_TIMEOUT_SECONDS = 5.0
_MAX_PAUSE_SECONDS = 30.0


class Component:
    """Verifies a broker's tokens with the nucleus, and announces the broker's port to it."""

    ready_message = None

    def __init__(self, socket_path: str, token: str) -> None:
        self._socket_path = socket_path
        self._token = token
        self._nucleus: Nucleus | None = None
        self._announcement: asyncio.Task[None] | None = None

    async def start(self, broker: Broker) -> None:
        try:
            from penstock.greengrass.nucleus import Nucleus
        except ImportError as error:
            # Greengrass sets these variables for all programs, even for a broker with own tokens.
            logger.warning(
                "cannot verify tokens of Greengrass components: %s (%s)",
                how_to_install("greengrass"),
                error,
            )
            return
        self._nucleus = Nucleus(self._socket_path, self._token, _TIMEOUT_SECONDS)
        broker.authenticator.verifier = ComponentTokens(self._nucleus, self._token)
        # The broker works without a nucleus.
        self._announcement = asyncio.create_task(_announce(self._nucleus, broker.port))

    async def stop(self) -> None:
        if self._announcement is not None:
            self._announcement.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._announcement
        if self._nucleus is not None:
            await self._nucleus.close()


def find_component(environment: Mapping[str, str]) -> Component | None:
    """Returns the component of this process; None if Greengrass did not start it."""
    socket_path, token = environment.get(SOCKET_VARIABLE), environment.get(TOKEN_VARIABLE)
    return Component(socket_path, token) if socket_path and token else None


async def _announce(nucleus: Nucleus, port: int) -> None:
    """Publishes the port, then reports the state RUNNING; retries until both succeed."""
    steps: list[_Step] = [
        _Step(f"port {port}", lambda: nucleus.publish({PORT_KEY: port})),
        _Step("state RUNNING", nucleus.report_running),
    ]
    for pause in delays(max_seconds=_MAX_PAUSE_SECONDS):
        steps = [step for step in steps if not await _succeeds(step)]
        if not steps:
            return
        await asyncio.sleep(pause)


class _Step(NamedTuple):
    name: str
    send: Callable[[], Awaitable[None]]


async def _succeeds(step: _Step) -> bool:
    try:
        await step.send()
    except NucleusError as error:
        logger.warning("cannot send %s to the Greengrass nucleus: %s", step.name, error)
        return False
    logger.info("sent %s to the Greengrass nucleus", step.name)
    return True
