"""The broker as a component: what it tells the nucleus, and what it is told of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.server import Broker
from penstock.client.backoff import delays
from penstock.greengrass.tokens import ComponentTokens, NucleusError

if TYPE_CHECKING:
    from penstock.greengrass.nucleus import Nucleus

logger = logging.getLogger(__name__)

SOCKET_VARIABLE = "AWS_GG_NUCLEUS_DOMAIN_SOCKET_FILEPATH_FOR_COMPONENT"
TOKEN_VARIABLE = "SVCUID"  # noqa: S105 - a variable's name
# The key of the component's configuration in which others look for the port.
PORT_KEY = "port"

# Less than a handshake may take: who waits for a token to be checked is told what is wrong.
_TIMEOUT_SECONDS = 5.0
_MAX_PAUSE_SECONDS = 30.0


class Component:
    """Goes with a broker: has tokens checked by the nucleus, and tells it where the broker is."""

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
            # Any program that Greengrass starts has its variables, also one with tokens of its own.
            logger.warning(
                "the tokens of Greengrass components are not known here: that needs "
                "pip install 'penstock[greengrass]' (%s)",
                error,
            )
            return
        self._nucleus = Nucleus(self._socket_path, self._token, _TIMEOUT_SECONDS)
        broker.authenticator.verifier = ComponentTokens(self._nucleus, self._token)
        # A nucleus that is away does not keep the broker from its work.
        self._announcement = asyncio.create_task(_announce(self._nucleus, broker.port))

    async def stop(self) -> None:
        if self._announcement is not None:
            self._announcement.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._announcement
        if self._nucleus is not None:
            await self._nucleus.close()


def find_component(environment: Mapping[str, str]) -> Component | None:
    """The component that this process is; None if Greengrass did not start it."""
    socket_path, token = environment.get(SOCKET_VARIABLE), environment.get(TOKEN_VARIABLE)
    return Component(socket_path, token) if socket_path and token else None


async def _announce(nucleus: Nucleus, port: int) -> None:
    """Publishes the port, then says that it runs: who waits for that finds it. Until it is done."""
    steps: list[_Step] = [
        _Step(f"the port {port}", lambda: nucleus.publish({PORT_KEY: port})),
        _Step("the state RUNNING", nucleus.report_running),
    ]
    for pause in delays(max_seconds=_MAX_PAUSE_SECONDS):
        steps = [step for step in steps if not await _succeeds(step)]
        if not steps:
            return
        await asyncio.sleep(pause)


class _Step(NamedTuple):
    what: str
    tell: Callable[[], Awaitable[None]]


async def _succeeds(step: _Step) -> bool:
    try:
        await step.tell()
    except NucleusError as error:
        logger.warning("the Greengrass nucleus could not be told %s: %s", step.what, error)
        return False
    logger.info("the Greengrass nucleus was told %s", step.what)
    return True
