"""Three operations of the Greengrass nucleus over its socket, with the AWS client.

Only this module imports the AWS client, which is an optional dependency.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

from awscrt.io import (  # type: ignore[import-untyped]
    ClientBootstrap,
    DefaultHostResolver,
    EventLoopGroup,
    SocketDomain,
    SocketOptions,
)
from awsiot.eventstreamrpc import (  # type: ignore[import-untyped]
    Connection,
    LifecycleHandler,
    MessageAmendment,
)
from awsiot.greengrasscoreipc import model  # type: ignore[import-untyped]
from awsiot.greengrasscoreipc.client import (  # type: ignore[import-untyped]
    GreengrassCoreIPCClient,
)

from penstock.greengrass.tokens import NucleusError

# The client's debug messages contain tokens. Errors are logged by the caller.
logging.getLogger("awsiot").setLevel(logging.CRITICAL)


class Nucleus:
    """A client of the nucleus that started this component. Each call has a timeout.

    The first call connects, and so does the first call after the connection was lost.
    """

    def __init__(self, socket_path: str, token: str, timeout: float) -> None:
        self._socket_path = socket_path
        self._timeout = timeout
        self._amend = MessageAmendment.create_static_authtoken_amender(token)
        group = EventLoopGroup(num_threads=1)
        self._bootstrap = ClientBootstrap(group, DefaultHostResolver(group))
        self._options = SocketOptions()
        self._options.domain = SocketDomain.Local
        self._connecting = asyncio.Lock()
        self._connection: Any = None
        self._client: Any = None

    async def validate(self, token: str) -> bool:
        """Whether the token belongs to a component of this nucleus."""
        request = model.ValidateAuthorizationTokenRequest(token=token)
        try:
            response = await self._call("new_validate_authorization_token", request)
        except model.InvalidTokenError:
            return False
        return bool(response.is_valid)

    async def publish(self, values: Mapping[str, Any]) -> None:
        """Merges values into the component's configuration, which other components can read."""
        await self._call(
            "new_update_configuration",
            model.UpdateConfigurationRequest(
                key_path=[], timestamp=datetime.now(UTC), value_to_merge=dict(values)
            ),
        )

    async def report_running(self) -> None:
        state = model.ReportedLifecycleState.RUNNING
        await self._call("new_update_state", model.UpdateStateRequest(state=state))

    async def close(self) -> None:
        closed = self._drop()
        if closed is not None:
            # The connection may already be lost, with any error.
            with contextlib.suppress(Exception):
                await asyncio.wait_for(asyncio.wrap_future(closed), self._timeout)

    async def _call(self, name: str, request: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout):
                operation = getattr(await self._connect(), name)()
                await asyncio.wrap_future(operation.activate(request))
                return await asyncio.wrap_future(operation.get_response())
        except TimeoutError:
            raise NucleusError(f"no answer in {self._timeout:g} s") from None
        except model.InvalidTokenError:
            raise
        except model.UnauthorizedError as error:
            raise NucleusError(f"this component is not authorized: {error.message}") from None
        except model.GreengrassCoreIPCError as error:
            raise NucleusError(error.message or type(error).__name__) from None
        # The client's other exceptions have no common base class. They are errors of the
        # connection, so the next call opens a new connection.
        except Exception as error:  # noqa: BLE001
            self._drop()
            raise NucleusError(str(error) or type(error).__name__) from None

    async def _connect(self) -> Any:
        # One task connects; waiting tasks share the connection.
        async with self._connecting:
            if self._client is None:
                connection = Connection(
                    host_name=self._socket_path,
                    port=0,
                    bootstrap=self._bootstrap,
                    socket_options=self._options,
                    connect_message_amender=self._amend,
                )
                connected = connection.connect(_DisconnectHandler(self, connection))
                try:
                    await asyncio.wrap_future(connected)
                except BaseException:
                    connection.close()
                    raise
                self._connection = connection
                self._client = GreengrassCoreIPCClient(connection)
            return self._client

    def _drop(self) -> Future[None] | None:
        """Closes the connection, and returns a future for its end; None without a connection."""
        connection, self._connection, self._client = self._connection, None, None
        closed: Future[None] | None = connection.close() if connection is not None else None
        return closed

    def lost(self, connection: Any) -> None:
        if connection is self._connection:
            self._connection = self._client = None


class _DisconnectHandler(LifecycleHandler):  # type: ignore[misc]
    """Reports a lost connection from a thread of the AWS client to the event loop."""

    def __init__(self, nucleus: Nucleus, connection: Any) -> None:
        self._nucleus = nucleus
        self._connection = connection
        self._loop = asyncio.get_running_loop()

    def on_disconnect(self, reason: Exception | None) -> None:  # noqa: ARG002 - the client's
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._nucleus.lost, self._connection)
