"""The `penstock` command: its groups, and the options that all of them share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from penstock import __version__
from penstock.broker.settings import Settings, load_settings
from penstock.errors import SettingError, StoreError

# Exit codes: 1 it could not be done, 2 the command or a setting is wrong.
FAILED = 1


class Failure(click.ClickException):
    """One line on standard error, no traceback."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc] # click reads it from the instance

    def show(self, file: Any = None) -> None:
        click.echo(f"penstock: {self.format_message()}", err=True, file=file)


root_option = click.option("--root", metavar="DIR", help="Where streams are stored.")
config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A penstock.toml; the one in this directory by default.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")


def settings_from(config: Path | None, **flags: Any) -> Settings:
    if flags.get("root"):
        # In a shell a path is relative to where one stands; in a setting it would be to chance.
        flags["root"] = str(Path(flags["root"]).absolute())
    try:
        return load_settings(os.environ, flags, config)
    except SettingError as error:
        raise Failure(str(error), click.UsageError.exit_code) from None


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="penstock")
def main() -> None:
    """An open stream manager: device data stored at the edge, read back, exported."""


@main.command()
@root_option
@click.option("--host", help="The address to listen on; without TLS a loopback one.")
@click.option("--port", type=int, help="The port for clients; 0 picks a free one.")
@click.option("--unix-socket", metavar="PATH", help="Listen on a Unix socket as well.")
@click.option("--log-level", help="TRACE, DEBUG, INFO, WARN or ERROR.")
@click.option("--log-format", help="human, or json for programs.")
@config_option
def serve(config: Path | None, **flags: Any) -> None:
    """Run the broker until it is told to stop (SIGTERM, Ctrl-C)."""
    settings = settings_from(config, **flags)
    # Only here: no other command needs an event loop.
    from penstock.broker.run import serve as run

    try:
        run(settings)
    except (SettingError, StoreError, OSError) as error:
        raise Failure(str(error)) from None


@main.command()
def settings() -> None:
    """Print all settings: their names, defaults, and what is allowed."""
    from penstock.broker.reference import settings_page

    click.echo(settings_page(), nl=False)


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(__version__)


def _add_commands() -> None:
    from penstock.cli import access, up

    main.add_command(access.env)
    main.add_command(access.tokens)
    main.add_command(up.up)


_add_commands()
