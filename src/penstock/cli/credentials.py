"""`penstock env`, `dashboard` and `tokens`: access to a broker for programs and browsers."""

from __future__ import annotations

import shlex
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

from penstock.broker.access import FIRST_TOKEN_ID, Role, new_secret, write_token_file
from penstock.cli.main import (
    NOT_FOUND,
    UNREACHABLE,
    Failure,
    config_option,
    json_option,
    root_option,
    settings_from,
)
from penstock.cli.output import echo_json, echo_table
from penstock.cli.units import format_duration, parse_duration
from penstock.discovery import ADDRESS_FILE, TOKEN_FILE, Address, read_address, read_token
from penstock.errors import StoreError
from penstock.settings import Settings
from penstock.store.catalog import Catalog, is_disk_full
from penstock.store.files import Disk
from penstock.store.reserve import release_reserve
from penstock.store.rows import TokenRotation, TokenRow
from penstock.store.schema import CATALOG_FILE


@click.command()
@root_option
@json_option
@config_option
def env(root: str | None, as_json: bool, config: Path | None) -> None:
    """Print the variables with which AWS SDKs find the broker.

    \b
      eval "$(penstock env)"    sets them in this shell
    """
    settings = settings_from(config, root=root)
    variables = client_variables(settings, require_address(settings))
    if as_json:
        echo_json(variables)
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")


@click.command()
@root_option
@json_option
@config_option
def dashboard(root: str | None, as_json: bool, config: Path | None) -> None:
    """Print a link to the dashboard that includes a token.

    It is the administrator's token, which allows all operations. Open the link only in your own
    browser.
    """
    settings = settings_from(config, root=root)
    link = dashboard_link(settings, require_address(settings))
    if link is None:
        raise Failure(
            f"the broker of {settings.root} has no dashboard: start it with --http-port, or set "
            "http_port (PENSTOCK_HTTP_PORT)",
            NOT_FOUND,
        )
    if as_json:
        echo_json({"url": link})
    else:
        click.echo(link)


def dashboard_link(settings: Settings, address: Address) -> str | None:
    """The link with the token in it; None if the broker has no dashboard."""
    if address.http_url is None:
        return None
    if not address.authenticate_client:
        return address.http_url
    # In the fragment: browsers do not send it to the server.
    return f"{address.http_url}#token={_read_token(settings)}"


def client_variables(settings: Settings, address: Address) -> dict[str, str]:
    # The SDKs do not support TLS: they use the plain listener if there is one.
    variables = {
        "STREAM_MANAGER_SERVER_HOST": "127.0.0.1" if address.local_port else address.local_host,
        "STREAM_MANAGER_SERVER_PORT": str(address.local_port or address.port),
    }
    if address.authenticate_client:
        variables["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = _read_token(settings)
    return variables


def _read_token(settings: Settings) -> str:
    try:
        return read_token(settings.root_path)
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(
            f"the token in {settings.root_path / TOKEN_FILE} cannot be read: {error}"
        ) from None


def find_address(settings: Settings) -> Address | None:
    try:
        return read_address(settings.root_path)
    except (OSError, ValueError) as error:
        raise Failure(f"{settings.root_path / ADDRESS_FILE} cannot be read: {error}") from None


def require_address(settings: Settings) -> Address:
    address = find_address(settings)
    if address is None:
        raise Failure(
            f"no broker serves {settings.root}: start one with "
            f"`penstock up --root {shlex.quote(settings.root)}`",
            UNREACHABLE,
        )
    return address


@click.group()
def tokens() -> None:
    """Create, list, rotate and revoke access tokens.

    A token has a role and patterns of stream names. The roles allow these operations:

    \b
      admin     all operations
      producer  list, describe, append
      consumer  list, describe, read
      pipeline  list, describe, read, append, export
      observer  list, describe

    All roles allow reading statistics.
    """


class _Duration(click.ParamType[int]):
    """A duration such as `90d`, converted to milliseconds."""

    name = "duration"

    def __init__(self, min_millis: int) -> None:
        self._min_millis = min_millis

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        try:
            millis = parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self._min_millis <= millis <= _MAX_DURATION_MILLIS:
            limits = f"{format_duration(self._min_millis)} to {_MAX_DURATION_DAYS}d"
            self.fail(f"{value!r} is out of range: expected {limits}", param, ctx)
        return millis


# A hundred years: every expiry is a valid date.
_MAX_DURATION_DAYS = 36_500
_MAX_DURATION_MILLIS = _MAX_DURATION_DAYS * 86_400_000
_GRACE = _Duration(min_millis=0)
_LIFETIME = _Duration(min_millis=1000)


@tokens.command("create")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    required=True,
    help="Role of the token; see `penstock tokens --help`.",
)
@click.option(
    "--stream",
    "patterns",
    multiple=True,
    default=["*"],
    metavar="PATTERN",
    help="Streams that the token allows, such as 'sensor-*'. May be repeated. By default all.",
)
@click.option(
    "--expires",
    type=_LIFETIME,
    metavar="DURATION",
    help="Lifetime of the token, such as 90d. By default it does not expire.",
)
@root_option
@json_option
@config_option
def create_token(
    name: str,
    role: str,
    patterns: tuple[str, ...],
    expires: int | None,
    root: str | None,
    as_json: bool,
    config: Path | None,
) -> None:
    """Create a token and print it.

    Keep the output: only a digest of the token is stored.
    """
    if not name.strip():
        raise click.UsageError("NAME is empty: expected a name for the token")
    catalog = _open_catalog(settings_from(config, root=root))
    if any(row.id == name for row in catalog.tokens()):
        raise Failure(
            f"the token {name!r} already exists: rotate or revoke it, or choose another name"
        )
    secret = new_secret()
    now = _now_millis()
    expires_time = None if expires is None else now + expires
    row = TokenRow(name, role, patterns, now, expires_time)
    with _explaining_sqlite_errors("cannot store the token"):
        catalog.add_token(row, secret)
    _echo_secret(name, secret, expires_time, as_json)


@tokens.command("rotate")
@click.argument("name")
@click.option(
    "--grace",
    type=_GRACE,
    default="1d",
    show_default=True,
    metavar="DURATION",
    help="How long the old token stays valid; 0s revokes it at once.",
)
@click.option(
    "--expires",
    type=_LIFETIME,
    metavar="DURATION",
    help="Lifetime of the new token. By default the lifetime of the old token.",
)
@root_option
@json_option
@config_option
def rotate_token(
    name: str,
    grace: int,
    expires: int | None,
    root: str | None,
    as_json: bool,
    config: Path | None,
) -> None:
    """Replace a token with a new one, and print it.

    The new token has the same role and streams.
    Both are valid until the grace period ends. At most the last two tokens of a name are valid.
    """
    settings = settings_from(config, root=root)
    catalog = _open_catalog(settings)
    old = next((row for row in catalog.tokens() if row.id == name), None)
    if old is None:
        raise Failure(f"there is no token {name!r}", NOT_FOUND)
    if expires is None and old.expires_time is not None:
        expires = old.expires_time - old.created_time
    now = _now_millis()
    expires_time = None if expires is None else now + expires
    secret = new_secret()
    rotation = TokenRotation(now, expires_time, grace_end=now + grace)
    with _explaining_sqlite_errors("cannot rotate the token"):
        catalog.rotate_token(name, secret, rotation)
    _echo_secret(name, secret, expires_time, as_json)
    if name == FIRST_TOKEN_ID:
        try:
            write_token_file(settings.root_path, secret)
        except OSError as error:
            path = settings.root_path / TOKEN_FILE
            raise Failure(
                f"the token is rotated, but {path} cannot be written: {error}; write the new token "
                "to that file before the grace period ends"
            ) from None


def _echo_secret(name: str, secret: str, expires_time: int | None, as_json: bool) -> None:
    if as_json:
        echo_json({"name": name, "token": secret, "expires": expires_time})
    else:
        click.echo(secret)


def _now_millis() -> int:
    return time.time_ns() // 1_000_000


@tokens.command("list")
@root_option
@json_option
@config_option
def list_tokens(root: str | None, as_json: bool, config: Path | None) -> None:
    """List tokens with their roles, streams and expiry.

    The tokens themselves are not shown.
    """
    rows = _open_catalog(settings_from(config, root=root)).tokens()
    if as_json:
        echo_json(
            [
                {
                    "name": row.id,
                    "role": row.role,
                    "streams": list(row.patterns),
                    "expires": row.expires_time,
                }
                for row in rows
            ]
        )
        return
    now = _now_millis()
    echo_table(
        ("name", "role", "streams", "expires"),
        [
            (row.id, row.role, ", ".join(row.patterns), _show_expiry(row.expires_time, now))
            for row in rows
        ],
    )


def _show_expiry(expires_time: int | None, now: int) -> str:
    if expires_time is None:
        return "never"
    shown = f"{datetime.fromtimestamp(expires_time / 1000, UTC):%Y-%m-%d %H:%M} UTC"
    return f"{shown} (expired)" if expires_time <= now else shown


@tokens.command("revoke")
@click.argument("name")
@root_option
@json_option
@config_option
def revoke_token(name: str, root: str | None, as_json: bool, config: Path | None) -> None:
    """Revoke a token. Its connections are closed within two seconds."""
    settings = settings_from(config, root=root)
    catalog = _open_catalog(settings)
    with _explaining_sqlite_errors("cannot revoke the token"):
        is_removed = catalog.remove_token(name)
    if not is_removed:
        raise Failure(f"there is no token {name!r}", NOT_FOUND)
    if name == FIRST_TOKEN_ID:
        # Otherwise the next start imports it again. Without the file the broker creates a token.
        (settings.root_path / TOKEN_FILE).unlink(missing_ok=True)
    if as_json:
        echo_json({"revoked": name})


def _open_catalog(settings: Settings) -> Catalog:
    path = settings.root_path / CATALOG_FILE
    if not path.exists():
        raise Failure(f"there is no store at {settings.root}: `penstock serve` creates one")
    release = partial(release_reserve, Disk(), settings.root_path)
    try:
        try:
            return Catalog(path, release)
        except sqlite3.Error as error:
            # Without a broker, SQLite has to create files first.
            if not is_disk_full(error) or not release():
                raise
        return Catalog(path, release)
    except (sqlite3.Error, StoreError) as error:
        raise Failure(f"{path} cannot be read: {error}") from None


@contextmanager
def _explaining_sqlite_errors(action: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        hint = "; free some disk space" if is_disk_full(error) else ""
        raise Failure(f"{action}: {error}{hint}") from None
