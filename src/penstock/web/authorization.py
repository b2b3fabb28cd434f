"""Authorization of HTTP requests, by token or by a connection from this machine."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from penstock.broker.access import ALLOWED, FULL_ACCESS, Access, Authenticator
from penstock.errors import ConnectFailedException, UnauthorizedException
from penstock.settings import LoopbackAccess, Settings, is_loopback
from penstock.wire.operations import Operation

# A request with one of these headers was forwarded by a proxy, and its client may be remote.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_SCHEME = "bearer "
_HINT = "send `Authorization: Bearer` and a token; `penstock env` prints one"


class Permissions(NamedTuple):
    """The streams that a request may see, and the operations that it may perform."""

    access: Access
    # None without a token.
    role: str | None
    may_read_messages: bool
    may_change: bool

    def sees(self, stream_name: str) -> bool:
        return self.access.sees(stream_name)

    @property
    def sees_all(self) -> bool:
        return self.access.sees_all

    def require_visible(self, stream_name: str) -> None:
        if not self.sees(stream_name):
            raise HTTPException(403, f"the token does not allow the stream {stream_name!r}")

    def require_read(self, stream_name: str) -> None:
        self.require_visible(stream_name)
        if self.may_read_messages:
            return
        if self.role is None:
            raise HTTPException(
                401,
                f"messages need a token: {_HINT}. The setting http_loopback_access = "
                '"messages" shows them to all programs on this machine',
            )
        raise HTTPException(403, f"the role {self.role} does not allow reading messages")

    def require_change(self, stream_name: str) -> None:
        self.require_visible(stream_name)
        if self.may_change:
            return
        if self.role is None:
            raise HTTPException(401, f"changes need a token with the role admin: {_HINT}")
        raise HTTPException(
            403, f"the role {self.role} does not allow changes; they need the role admin"
        )


class Authorizer:
    """Determines the permissions of a request, or rejects it."""

    def __init__(self, authenticator: Authenticator, settings: Settings) -> None:
        self._authenticator = authenticator
        self._settings = settings

    async def authorize(self, request: HTTPConnection) -> Permissions:
        header = request.headers.get("authorization", "")
        # Without authentication a token is ignored: it must not replace the check for a local
        # request.
        if header and self._settings.authenticate_client:
            if not header.lower().startswith(_SCHEME):
                raise HTTPException(401, f"the Authorization header is not a bearer token: {_HINT}")
            return await self._authorize_token(header[len(_SCHEME) :].strip())
        if not self._is_local(request):
            raise HTTPException(401, f"a token is needed: {_HINT}")
        if not self._settings.authenticate_client:
            # Programs on this machine have full access. `_is_local` rejects other origins.
            return _permissions(FULL_ACCESS, role=None)
        allowed = self._settings.http_loopback_access
        if allowed is LoopbackAccess.NONE:
            raise HTTPException(401, f"a token is needed: {_HINT}")
        return Permissions(
            FULL_ACCESS,
            role=None,
            may_read_messages=allowed is LoopbackAccess.MESSAGES,
            may_change=False,
        )

    async def _authorize_token(self, secret: str) -> Permissions:
        try:
            access = await self._authenticator.verify(secret)
        except UnauthorizedException as error:
            raise HTTPException(401, error.message) from None
        except ConnectFailedException as error:
            raise HTTPException(503, error.message) from None
        return _permissions(access, role=access.role.value)

    def _is_local(self, request: HTTPConnection) -> bool:
        """Whether a program on this machine sent the request, and no other origin caused it."""
        client = request.client
        if client is None or not is_loopback(client.host):
            return False
        if any(name in request.headers for name in _FORWARDED):
            return False
        # Protects against DNS rebinding: a foreign name may resolve to this machine.
        host = request.headers.get("host", "")
        if not is_loopback(_hostname(host)):
            return False
        # Rejects cross-origin requests.
        origin = request.headers.get("origin")
        return origin is None or origin.partition("://")[2] == host


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _permissions(access: Access, role: str | None) -> Permissions:
    allowed = ALLOWED[access.role]
    return Permissions(
        access,
        role,
        may_read_messages=Operation.ReadMessages in allowed,
        may_change=Operation.UpdateMessageStream in allowed,
    )
