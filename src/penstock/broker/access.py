"""Permissions of tokens: their roles, and the streams that they may use."""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from penstock.discovery import TOKEN_FILE
from penstock.errors import ConnectFailedException, ResponseStatusCode, UnauthorizedException
from penstock.store.catalog import Catalog
from penstock.store.rows import TokenRotation, TokenRow, digest_token
from penstock.wire.operations import Operation

logger = logging.getLogger(__name__)

FIRST_TOKEN_ID = "first"  # noqa: S105 - a name, not a secret

_UNKNOWN_TOKEN = "the token is not known to this server"  # noqa: S105 - a message
# A shorter token in the token file can be guessed. Penstock creates tokens of 43 characters.
MIN_TOKEN_LENGTH = 16

_OBSERVE = frozenset(
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
_EXPORT = frozenset((Operation.PlanExports, Operation.CommitExports, Operation.ReserveBandwidth))
_CHANGE = frozenset(
    (
        Operation.CreateMessageStream,
        Operation.UpdateMessageStream,
        Operation.DeleteMessageStream,
        Operation.RewindExport,
    )
)


class Role(StrEnum):
    admin = "admin"
    producer = "producer"
    consumer = "consumer"
    pipeline = "pipeline"
    observer = "observer"


ALLOWED = {
    Role.admin: _OBSERVE | _APPEND | _READ | _CHANGE | _EXPORT,
    Role.producer: _OBSERVE | _APPEND,
    Role.consumer: _OBSERVE | _READ,
    # The pipeline reads messages to export them and appends to status streams.
    Role.pipeline: _OBSERVE | _READ | _APPEND | _EXPORT,
    # A monitoring program such as Prometheus reads no messages.
    Role.observer: _OBSERVE,
}


class Access:
    """The permissions of one token."""

    def __init__(self, token: TokenRow, digest: bytes | None = None) -> None:
        self.token = token
        # The digest of the secret; None for tokens that are not in the catalog.
        self.digest = digest
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
                f"these roles do: {', '.join(r for r in Role if operation in ALLOWED[r])}"
            )
        if stream_name is not None and not self._sees_all and not self.sees(stream_name):
            raise UnauthorizedException(
                f"the token does not allow the stream {stream_name!r}; "
                f"it allows {', '.join(self._patterns)}"
            )


FULL_ACCESS = Access(TokenRow("none", Role.admin, ("*",), 0))
NO_ACCESS = Access(TokenRow("none", Role.consumer, (), 0))


class Verifier(Protocol):
    """Verifies tokens that are not in the catalog."""

    async def verify(self, secret: str) -> Access:
        """Raises UnauthorizedException if the token is invalid, ConnectFailedException if it cannot
        be verified. Needs its own timeout, besides the timeout of the handshake."""


class Authenticator:
    """Finds the permissions of a token in a handshake."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        is_open: bool,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._catalog = catalog
        self._is_open = is_open
        self._clock = clock
        # Verifies tokens that are not in the catalog.
        self.verifier: Verifier | None = None

    async def verify(self, secret: str) -> Access:
        """The permissions of any token; raises UnauthorizedException if it is invalid."""
        access = self.find(secret)
        if access is not None:
            return access
        assert self.verifier is not None
        return await self.verifier.verify(secret)

    def find(self, secret: str) -> Access | None:
        """The permissions of a token in the catalog; None if only the verifier can verify it."""
        if self._is_open:
            return FULL_ACCESS
        if not secret:
            raise UnauthorizedException(
                "a token is required; set AWS_CONTAINER_AUTHORIZATION_TOKEN "
                "(`penstock env` prints it)"
            )
        digest = digest_token(secret)
        try:
            row = self._catalog.find_token(digest)
        except sqlite3.Error as error:
            raise ConnectFailedException(
                f"cannot look up the token: {error}", ResponseStatusCode.FailedToConnect
            ) from None
        if row is not None:
            self._require_valid(row)
            return Access(row, digest)
        if self.verifier is None:
            raise UnauthorizedException(_UNKNOWN_TOKEN)
        return None

    def _require_valid(self, token: TokenRow) -> None:
        if self._has_expired(token):
            assert token.expires_time is not None
            expired = datetime.fromtimestamp(token.expires_time / 1000, UTC)
            raise UnauthorizedException(
                f"the token {token.id!r} expired at {expired:%Y-%m-%d %H:%M:%S} UTC; "
                f"`penstock tokens rotate {token.id}` creates a new secret"
            )
        if token.role not in list(Role):
            logger.error("token %r refused: its role %r is unknown", token.id, token.role)
            raise UnauthorizedException(
                f"the token {token.id!r} has the unknown role {token.role!r}; "
                f"expected one of {', '.join(Role)}"
            )

    def _has_expired(self, token: TokenRow) -> bool:
        return token.expires_time is not None and token.expires_time <= self._clock()

    def admits(self, access: Access) -> bool:
        """Whether the token of an open connection is in the catalog and has not expired."""
        if self._is_open or access.digest is None:
            return True
        token = self._catalog.find_token(access.digest)
        if token is None or self._has_expired(token):
            return False
        # After a rotation the old secret has an expiry time.
        access.token = token
        return True

    def has_expired(self, access: Access) -> bool:
        """Whether the token of an open connection has expired, without reading the catalog."""
        return not self._is_open and self._has_expired(access.token)


def ensure_first_token(root: Path, catalog: Catalog) -> None:
    """Creates the administrator's token on the first start, readable by its owner only."""
    path = root / TOKEN_FILE
    now = time.time_ns() // 1_000_000
    try:
        secret = path.read_text().strip()
        problem = _find_problem(secret)
    except FileNotFoundError:
        secret = problem = ""
    except UnicodeDecodeError:
        secret, problem = "", "it is not UTF-8 text"
    if problem:
        invalid = path.with_name(f"{TOKEN_FILE}.invalid")
        path.replace(invalid)
        logger.error(
            "the token in %s is not valid: %s. A new token was created; the old file was moved to "
            "%s",
            path,
            problem,
            invalid,
        )
        if secret and (known := catalog.find_token(digest_token(secret))):
            # An earlier version may have accepted this token.
            catalog.remove_token(known.id)
    if problem or not secret:
        secret = new_secret()
        write_token_file(root, secret)
    if catalog.find_token(digest_token(secret)) is not None:
        return
    # Programs may still have the secret of the first token, so a rotation keeps it valid.
    is_rotated = problem and catalog.rotate_token(
        FIRST_TOKEN_ID, secret, TokenRotation(now, expires_time=None, grace_end=None)
    )
    if not is_rotated:
        catalog.add_token(TokenRow(FIRST_TOKEN_ID, Role.admin, ("*",), now), secret)


def write_token_file(root: Path, secret: str) -> None:
    """Replaces the token file atomically."""
    path = root / TOKEN_FILE
    temporary = path.with_name(f"{TOKEN_FILE}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _find_problem(secret: str) -> str:
    """Why this is not a valid administrator's token; empty if it is."""
    if not secret:
        return "it is empty"
    if len(secret) < MIN_TOKEN_LENGTH:
        return f"its length is {len(secret)}, expected at least {MIN_TOKEN_LENGTH} characters"
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        return "only visible ASCII characters are allowed"
    return ""


def new_secret() -> str:
    return secrets.token_urlsafe(32)
