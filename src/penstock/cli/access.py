"""How other programs get in: the variables for their environment, and tokens."""

from __future__ import annotations

import json
import shlex
import sqlite3
import time
from pathlib import Path
from typing import Any

import click

from penstock.broker.access import FIRST_TOKEN_ID, TOKEN_FILE, Role, new_secret
from penstock.broker.server import ADDRESS_FILE
from penstock.broker.settings import Settings
from penstock.cli.main import Failure, config_option, json_option, root_option, settings_from
from penstock.errors import StoreError
from penstock.store.catalog import Catalog, TokenRow
from penstock.store.store import is_served


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
        click.echo(json.dumps(variables))
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")


def client_variables(settings: Settings) -> dict[str, str]:
    address = read_address(settings)
    # The SDKs speak no TLS: they use the plain listener where there is one.
    port = address.get("localPort") or address["port"]
    host = "127.0.0.1" if address.get("localPort") else address["host"]
    variables = {
        "STREAM_MANAGER_SERVER_HOST": host,
        "STREAM_MANAGER_SERVER_PORT": str(port),
    }
    if address["authenticateClient"]:
        path = settings.root_path / TOKEN_FILE
        try:
            variables["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = path.read_text().strip()
        except OSError as error:
            raise Failure(f"the token cannot be read: {error}") from None
    return variables


def read_address(settings: Settings) -> dict[str, Any]:
    """Where the broker of this root listens, as it wrote it down when it started."""
    path = settings.root_path / ADDRESS_FILE
    # One that was killed leaves its address behind, but not the lock.
    if not is_served(settings.root_path):
        raise Failure(
            f"no broker serves {settings.root}: start one with "
            f"`penstock serve --root {shlex.quote(settings.root)}`"
        )
    try:
        address: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Failure(f"{path} cannot be read: {error}") from None
    return address


@click.group()
def tokens() -> None:
    """Tokens that let programs in, each with a role and the streams it is for.

    \b
    admin     everything
    producer  list, describe, append
    consumer  list, describe, read
    pipeline  list, describe, read, append
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
    catalog = _open_catalog(settings_from(config, root=root))
    if any(row.id == name for row in catalog.tokens()):
        raise Failure(f"there is a token {name!r} already: revoke it, or choose another name")
    secret = new_secret()
    catalog.add_token(TokenRow(name, role, patterns, time.time_ns() // 1_000_000), secret)
    click.echo(json.dumps({"name": name, "token": secret}) if as_json else secret)


@tokens.command("list")
@root_option
@json_option
@config_option
def list_tokens(root: str | None, as_json: bool, config: Path | None) -> None:
    """Show which tokens there are; never the tokens themselves."""
    rows = _open_catalog(settings_from(config, root=root)).tokens()
    if as_json:
        click.echo(
            json.dumps([{"name": r.id, "role": r.role, "streams": list(r.patterns)} for r in rows])
        )
        return
    width = max((len(row.id) for row in rows), default=4)
    for row in rows:
        click.echo(f"{row.id:<{width}}  {row.role:<8}  {', '.join(row.patterns)}")


@tokens.command("revoke")
@click.argument("name")
@root_option
@config_option
def revoke_token(name: str, root: str | None, config: Path | None) -> None:
    """End a token; connections that came in with it are closed within a second or two."""
    settings = settings_from(config, root=root)
    if not _open_catalog(settings).remove_token(name):
        raise Failure(f"there is no token {name!r}")
    if name == FIRST_TOKEN_ID:
        # The next start would take it back in from there; without it, it makes another one.
        (settings.root_path / TOKEN_FILE).unlink(missing_ok=True)


def _open_catalog(settings: Settings) -> Catalog:
    path = settings.root_path / "catalog.sqlite"
    if not path.exists():
        raise Failure(f"there is no store at {settings.root}: `penstock serve` makes one")
    try:
        return Catalog(path)
    except (sqlite3.Error, StoreError) as error:
        raise Failure(f"{path} cannot be read: {error}") from None
