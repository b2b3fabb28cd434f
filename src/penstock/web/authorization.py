"""Who looks: what a request may see, by its token or because it comes from this machine."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from penstock.broker.access import ALLOWED, FULL_ACCESS, Access, Authenticator
from penstock.errors import ConnectFailedException, UnauthorizedException
from penstock.settings import LoopbackAccess, Settings, is_loopback
from penstock.wire.operations import Operation

# Whoever sets one of these passes on what somebody else asked, who may be anywhere.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_SCHEME = "bearer "
_HINT = "send `Authorization: Bearer` and a token; `penstock env` prints one"


class Visitor(NamedTuple):
    """What somebody may see and do."""

    access: Access
    # None if he has no token.
    role: str | None
    may_read_messages: bool
    may_change: bool

    def sees(self, stream_name: str) -> bool:
        return self.access.sees(stream_name)

    @property
    def sees_all(self) -> bool:
        return self.access.sees_all

    def require_sight(self, stream_name: str) -> None:
        if not self.sees(stream_name):
            raise HTTPException(403, f"the token does not allow the stream {stream_name!r}")

    def require_reading(self, stream_name: str) -> None:
        self.require_sight(stream_name)
        if self.may_read_messages:
            return
        if self.role is None:
            raise HTTPException(
                401,
                f"messages need a token: {_HINT}. Setting http_loopback_access = "
                '"messages" shows them to all programs on this machine',
            )
        raise HTTPException(403, f"the role {self.role} does not allow to read messages")

    def require_change(self, stream_name: str) -> None:
        self.require_sight(stream_name)
        if self.may_change:
            return
        if self.role is None:
            raise HTTPException(401, f"changes need the token of an admin: {_HINT}")
        raise HTTPException(403, f"the role {self.role} does not allow changes; it takes admin")


class Authorizer:
    """Turns a request into a visitor, or refuses it."""

    def __init__(self, authenticator: Authenticator, settings: Settings) -> None:
        self._authenticator = authenticator
        self._settings = settings

    async def admit(self, request: HTTPConnection) -> Visitor:
        said = request.headers.get("authorization", "")
        # Where tokens are not looked at, none makes a request anybody else's.
        if said and self._settings.authenticate_client:
            if not said.lower().startswith(_SCHEME):
                raise HTTPException(401, f"the Authorization header is not a bearer token: {_HINT}")
            return await self._admit_token(said[len(_SCHEME) :].strip())
        if not self._is_local(request):
            raise HTTPException(401, f"a token is needed: {_HINT}")
        if not self._settings.authenticate_client:
            # Every program on this machine may do everything; a page from elsewhere is none.
            return _visitor(FULL_ACCESS, role=None)
        allowed = self._settings.http_loopback_access
        if allowed is LoopbackAccess.NONE:
            raise HTTPException(401, f"a token is needed: {_HINT}")
        return Visitor(
            FULL_ACCESS,
            role=None,
            may_read_messages=allowed is LoopbackAccess.MESSAGES,
            may_change=False,
        )

    async def _admit_token(self, secret: str) -> Visitor:
        try:
            access = await self._authenticator.verify(secret)
        except UnauthorizedException as error:
            raise HTTPException(401, error.message) from None
        except ConnectFailedException as error:
            raise HTTPException(503, error.message) from None
        return _visitor(access, role=access.role.value)

    def _is_local(self, request: HTTPConnection) -> bool:
        """Whether a program on this machine asks, and for itself."""
        client = request.client
        if client is None or not is_loopback(client.host):
            return False
        if any(name in request.headers for name in _FORWARDED):
            return False
        # A browser sends whatever name led it here: one that its owner has pointed at this machine
        # must not make this page his.
        host = request.headers.get("host", "")
        if not is_loopback(_hostname(host)):
            return False
        # What a page asks for is the answer to whoever made it, and this one's is ours.
        origin = request.headers.get("origin")
        return origin is None or origin.partition("://")[2] == host


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _visitor(access: Access, role: str | None) -> Visitor:
    allowed = ALLOWED[access.role]
    return Visitor(
        access,
        role,
        may_read_messages=Operation.ReadMessages in allowed,
        may_change=Operation.UpdateMessageStream in allowed,
    )
