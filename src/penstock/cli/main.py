"""The `penstock` command: its groups, the options that all of them share, how it fails."""

from __future__ import annotations

import importlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock import __version__
from penstock.cli.output import echo_json
from penstock.errors import (
    ConnectFailedException,
    ResourceNotFoundException,
    ResponseStatusCode,
    SettingError,
    StoreError,
    StreamManagerException,
)
from penstock.settings import Settings, load_settings

if TYPE_CHECKING:
    from penstock.broker.run import BrokerService

# Exit codes, as docs/cli.md has them. A command line or a setting that is wrong is 2, Click's own.
FAILED = 1
WRONG_USAGE = click.UsageError.exit_code
UNREACHABLE = 3
NOT_ALLOWED = 4
NOT_FOUND = 5
DAMAGED = 6
# As a shell has it for what a signal ended.
INTERRUPTED = 128 + signal.SIGINT


class Failure(click.ClickException):
    """One line on standard error, no traceback."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc] # click reads it from the instance

    def show(self, file: Any = None) -> None:
        click.echo(f"penstock: {self.format_message()}", err=True, file=file)


def explained(error: click.NoSuchOption, hint: str) -> click.NoSuchOption:
    """The same with a hint."""
    return click.NoSuchOption(
        error.option_name, f"{error.message} {hint}", error.possibilities, error.ctx
    )


# The module of each command that does not stand here: it is imported when the command is used.
_MODULES = {
    "append": "append",
    "bench": "bench",
    "completion": "completion",
    "dashboard": "credentials",
    "doctor": "doctor",
    "env": "credentials",
    "exports": "exports",
    "pipeline": "pipeline",
    "read": "read",
    "sandbox": "sandbox",
    "status": "status",
    "streams": "stream_commands",
    "tail": "read",
    "tokens": "credentials",
    "up": "up",
    "verify": "verify",
}


class Commands(click.Group):
    """Finds commands by their names, and turns what goes wrong into a line and an exit code."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted([*super().list_commands(context), *_MODULES])

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in _MODULES:
            module = importlib.import_module(f"penstock.cli.{_MODULES[name]}")
            command: click.Command = getattr(module, name)
            return command
        return super().get_command(context, name)

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        try:
            return super().parse_args(context, arguments)
        except click.NoSuchOption as error:
            raise explained(error, "Options stand behind the command.") from None

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(context, arguments)
        except click.NoSuchCommand as error:
            # click knows only those that are imported.
            name, names = error.command_name, self.list_commands(context)
            raise click.NoSuchCommand(name, possibilities=names, ctx=context) from None

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except SettingError as error:
            raise Failure(str(error), WRONG_USAGE) from None
        except StreamManagerException as error:
            raise Failure(error.message or type(error).__name__, _exit_code(error)) from None
        except BrokenPipeError:
            raise  # whoever read the output has enough: click ends quietly
        except (ConnectionError, TimeoutError) as error:
            raise Failure(str(error), UNREACHABLE) from None
        except (StoreError, OSError) as error:
            raise Failure(str(error)) from None


def _exit_code(error: StreamManagerException) -> int:
    if error.status == ResponseStatusCode.Unauthorized:
        return NOT_ALLOWED
    if isinstance(error, ResourceNotFoundException):
        return NOT_FOUND
    if isinstance(error, (ConnectFailedException, ConnectionError, TimeoutError)):
        return UNREACHABLE
    return FAILED


# That of the dashboard with `penstock up`, where nobody has chosen one.
USUAL_HTTP_PORT = 8089

root_option = click.option("--root", metavar="DIR", help="Where streams are stored.")
config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A penstock.toml; the one in this directory by default.",
)
http_port_option = click.option(
    "--http-port",
    type=int,
    metavar="PORT",
    help="The port for the dashboard, /metrics and /healthz; 0 picks a free one.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")


def settings_from(config: Path | None, **flags: Any) -> Settings:
    if flags.get("root"):
        # In a shell a path is relative to where one stands; in a setting it would be to chance.
        flags["root"] = str(Path(flags["root"]).absolute())
    return load_settings(os.environ, flags, config)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="penstock")
@click.option("--supervised", is_flag=True, hidden=True)
def main(supervised: bool) -> None:
    """An open stream manager: device data stored at the edge, read back, exported."""
    if supervised:
        from penstock.cli.supervision import end_with_supervisor

        end_with_supervisor()


@main.command()
@root_option
@click.option("--host", help="The address to listen on; without TLS a loopback one.")
@click.option("--port", type=int, help="The port for clients; 0 picks a free one.")
@http_port_option
@click.option("--unix-socket", metavar="PATH", help="Listen on a Unix socket as well.")
@click.option("--log-level", help="TRACE, DEBUG, INFO, WARN or ERROR.")
@click.option("--log-format", help="human, or json for programs.")
@click.option("--json", "as_json", is_flag=True, help="The same as --log-format json.")
@config_option
def serve(config: Path | None, as_json: bool, **flags: Any) -> None:
    """Run the broker until it is told to stop (SIGTERM, Ctrl-C)."""
    if as_json:
        flags["log_format"] = "json"
    settings = settings_from(config, **flags)
    # Only here: no other command needs an event loop.
    from penstock.broker.run import serve as run

    try:
        run(settings, _services(settings))
    except SettingError as error:
        # The settings are well-formed, and yet it cannot be done: the port is taken, say.
        raise Failure(str(error)) from None


def _services(settings: Settings) -> list[BrokerService]:
    """What runs in the broker's loop beside it; each needs packages that a broker does not."""
    from penstock.greengrass.component import find_component

    # First of all: whose token it knows gets in from the beginning.
    component = find_component(os.environ)
    services: list[BrokerService] = [component] if component is not None else []
    if settings.http_port is not None:
        try:
            from penstock.web.web_server import WebServer
        except ImportError as error:
            raise Failure(
                f"the dashboard needs more packages: pip install 'penstock[web]' ({error})"
            ) from None
        services.append(WebServer())
    return services


@main.command()
@json_option
def settings(as_json: bool) -> None:
    """Print all settings: their names, defaults, and what is allowed."""
    from penstock.settings_reference import references, settings_page

    if as_json:
        echo_json([setting._asdict() for setting in references()])
    else:
        click.echo(settings_page(), nl=False)


@main.command()
@json_option
def version(as_json: bool) -> None:
    """Print the version."""
    if as_json:
        echo_json({"version": __version__})
    else:
        click.echo(__version__)
