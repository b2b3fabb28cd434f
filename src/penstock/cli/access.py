"""How other programs get in: the variables for their environment, and tokens."""

from __future__ import annotations

import shlex
import sqlite3
import time
from pathlib import Path

import click

from penstock.broker.access import FIRST_TOKEN_ID, Role, new_secret
from penstock.broker.settings import Settings
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
from penstock.errors import StoreError
from penstock.root import ADDRESS_FILE, TOKEN_FILE, Address, read_address, read_token
from penstock.store.catalog import Catalog, TokenRow


@click.command()
@root_option
@json_option
@config_option
def env(root: str | None, as_json: bool, config: Path | None) -> None:
    """Print what the AWS SDKs need to find this broker, as lines for a shell.

    Use it as: eval "$(penstock env)"
    """
    variables = client_variables(settings_from(config, root=root))
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
    """Print the link to the dashboard, with the token in it.

    Whoever has the link may do everything: it is for one's own browser.
    """
    settings = settings_from(config, root=root)
    link = dashboard_link(settings)
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


def dashboard_link(settings: Settings) -> str | None:
    """None if the broker has no dashboard."""
    address = require_address(settings)
    if address.http_url is None:
        return None
    if not address.authenticate_client:
        return address.http_url
    # Behind the #, where a browser keeps it to itself.
    return f"{address.http_url}#token={_read_token(settings)}"


def client_variables(settings: Settings) -> dict[str, str]:
    address = require_address(settings)
    # The SDKs speak no TLS: they use the plain listener where there is one.
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
    except OSError as error:
        raise Failure(f"the token cannot be read: {error}") from None


def require_address(settings: Settings) -> Address:
    try:
        address = read_address(settings.root_path)
    except (OSError, ValueError) as error:
        raise Failure(f"{settings.root_path / ADDRESS_FILE} cannot be read: {error}") from None
    if address is None:
        raise Failure(
            f"no broker serves {settings.root}: start one with "
            f"`penstock up --root {shlex.quote(settings.root)}`",
            UNREACHABLE,
        )
    return address


@click.group()
def tokens() -> None:
    """Tokens that let programs in, each with a role and the streams it is for.

    \b
    admin     everything
    producer  list, describe, append
    consumer  list, describe, read
    pipeline  list, describe, read, append, export
    observer  list, describe

    All of them may see statistics.
    """


@tokens.command("create")
@click.argument("name")
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True)
@click.option(
    "--stream",
    "patterns",
    multiple=True,
    default=["*"],
    metavar="PATTERN",
    help="Streams it is for, such as 'sensor-*'; all by default. May be repeated.",
)
@root_option
@json_option
@config_option
def create_token(
    name: str,
    role: str,
    patterns: tuple[str, ...],
    root: str | None,
    as_json: bool,
    config: Path | None,
) -> None:
    """Make a token and print it, once: only its digest is stored."""
    if not name.strip():
        raise click.UsageError("NAME is empty: expected one that tells whose token it is")
    catalog = _open_catalog(settings_from(config, root=root))
    if any(row.id == name for row in catalog.tokens()):
        raise Failure(f"there is a token {name!r} already: revoke it, or choose another name")
    secret = new_secret()
    catalog.add_token(TokenRow(name, role, patterns, time.time_ns() // 1_000_000), secret)
    if as_json:
        echo_json({"name": name, "token": secret})
    else:
        click.echo(secret)


@tokens.command("list")
@root_option
@json_option
@config_option
def list_tokens(root: str | None, as_json: bool, config: Path | None) -> None:
    """Show which tokens there are; never the tokens themselves."""
    rows = _open_catalog(settings_from(config, root=root)).tokens()
    if as_json:
        echo_json([{"name": r.id, "role": r.role, "streams": list(r.patterns)} for r in rows])
        return
    echo_table(
        ("name", "role", "streams"), [(row.id, row.role, ", ".join(row.patterns)) for row in rows]
    )


@tokens.command("revoke")
@click.argument("name")
@root_option
@json_option
@config_option
def revoke_token(name: str, root: str | None, as_json: bool, config: Path | None) -> None:
    """End a token; connections that came in with it are closed within a second or two."""
    settings = settings_from(config, root=root)
    if not _open_catalog(settings).remove_token(name):
        raise Failure(f"there is no token {name!r}", NOT_FOUND)
    if name == FIRST_TOKEN_ID:
        # The next start would take it back in from there; without it, it makes another one.
        (settings.root_path / TOKEN_FILE).unlink(missing_ok=True)
    if as_json:
        echo_json({"revoked": name})


def _open_catalog(settings: Settings) -> Catalog:
    path = settings.root_path / "catalog.sqlite"
    if not path.exists():
        raise Failure(f"there is no store at {settings.root}: `penstock serve` makes one")
    try:
        return Catalog(path)
    except (sqlite3.Error, StoreError) as error:
        raise Failure(f"{path} cannot be read: {error}") from None
