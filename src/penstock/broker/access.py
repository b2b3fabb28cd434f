"""Who may do what: tokens, their roles, and the streams they are for."""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from penstock.errors import ConnectFailedException, ResponseStatusCode, UnauthorizedException
from penstock.root import TOKEN_FILE
from penstock.store.catalog import Catalog, TokenRow
from penstock.wire.operations import Operation

FIRST_TOKEN_ID = "first"  # noqa: S105 - a name, not a secret

_UNKNOWN_TOKEN = "the token is not known to this server"  # noqa: S105 - a message

_LOOK = frozenset(
    (
        Operation.ListStreams,
        Operation.DescribeMessageStream,
        Operation.Statistics,
        Operation.WatchStreams,
    )
)
_APPEND = frozenset((Operation.AppendMessage, Operation.AppendMessages))
_READ = frozenset(
    (
        Operation.ReadMessages,
        Operation.ReadColumns,
        Operation.ReadStored,
        Operation.LocateMessages,
    )
)
_EXPORT = frozenset((Operation.PlanExports, Operation.CommitExports))
_CHANGE = frozenset(
    (
        Operation.CreateMessageStream,
        Operation.UpdateMessageStream,
        Operation.DeleteMessageStream,
    )
)


class Role(StrEnum):
    admin = "admin"
    producer = "producer"
    consumer = "consumer"
    pipeline = "pipeline"
    observer = "observer"


ALLOWED = {
    Role.admin: _LOOK | _APPEND | _READ | _CHANGE | _EXPORT,
    Role.producer: _LOOK | _APPEND,
    Role.consumer: _LOOK | _READ,
    # The pipeline reads what it exports and appends to status streams.
    Role.pipeline: _LOOK | _READ | _APPEND | _EXPORT,
    # Somebody who watches, such as Prometheus, has no business with messages.
    Role.observer: _LOOK,
}


class Access:
    """What the holder of one token may do."""

    def __init__(self, token: TokenRow, *, is_of_catalog: bool = True) -> None:
        self.token = token
        self.is_of_catalog = is_of_catalog
        self.role = Role(token.role)
        self._patterns = token.patterns
        self._operations = ALLOWED[self.role]
        self._sees_all = "*" in self._patterns

    @property
    def sees_all(self) -> bool:
        return self._sees_all

    def sees(self, stream_name: str) -> bool:
        return self._sees_all or any(
            fnmatchcase(stream_name, pattern) for pattern in self._patterns
        )

    def require(self, operation: Operation, stream_name: str | None = None) -> None:
        if operation not in self._operations:
            raise UnauthorizedException(
                f"the role {self.role} does not allow {operation.name}; "
                f"it takes one of {', '.join(r for r in Role if operation in ALLOWED[r])}"
            )
        if stream_name is not None and not self._sees_all and not self.sees(stream_name):
            raise UnauthorizedException(
                f"the token is not for the stream {stream_name!r}; "
                f"it is for {', '.join(self._patterns)}"
            )


EVERYTHING = Access(TokenRow("none", Role.admin, ("*",), 0))
NOTHING = Access(TokenRow("none", Role.consumer, (), 0))


class Verifier(Protocol):
    """Somebody who knows tokens that are not in the catalog."""

    async def verify(self, secret: str) -> Access:
        """UnauthorizedException if the token is not good, ConnectFailedException if it cannot be
        told. It must not take for ever; the handshake ends when its time is over."""


class Gate:
    """Turns the token of a handshake into an access."""

    def __init__(self, catalog: Catalog, *, is_open: bool) -> None:
        self._catalog = catalog
        self._is_open = is_open
        # Whom to ask for tokens that are not in the catalog.
        self.verifier: Verifier | None = None

    async def ask(self, secret: str) -> Access:
        """The access of any token; UnauthorizedException if it is not good."""
        access = self.find(secret)
        if access is not None:
            return access
        assert self.verifier is not None
        return await self.verifier.verify(secret)

    def find(self, secret: str) -> Access | None:
        """What is known at once: None if the verifier has to be asked."""
        if self._is_open:
            return EVERYTHING
        if not secret:
            raise UnauthorizedException(
                "a token is required; set AWS_CONTAINER_AUTHORIZATION_TOKEN "
                "(`penstock env` prints it)"
            )
        try:
            row = self._catalog.find_token(secret)
        except sqlite3.Error as error:
            raise ConnectFailedException(
                f"tokens cannot be looked up: {error}", ResponseStatusCode.FailedToConnect
            ) from None
        if row is not None:
            return Access(row)
        if self.verifier is None:
            raise UnauthorizedException(_UNKNOWN_TOKEN)
        return None

    def admits(self, access: Access) -> bool:
        """Whether the token of an open connection still stands."""
        # The whole row: another token may have got the name of one that was revoked.
        return self._is_open or not access.is_of_catalog or access.token in self._catalog.tokens()


def ensure_first_token(root: Path, catalog: Catalog) -> None:
    """The administrator's token: made on the first start, readable by the owner only."""
    path = root / TOKEN_FILE
    try:
        secret = path.read_text().strip()
    except FileNotFoundError:
        secret = ""
    if not secret:
        secret = new_secret()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secret + "\n")
    known = catalog.find_token(secret)
    if known is None:
        catalog.add_token(
            TokenRow(FIRST_TOKEN_ID, Role.admin, ("*",), time.time_ns() // 1_000_000), secret
        )


def new_secret() -> str:
    return secrets.token_urlsafe(32)
