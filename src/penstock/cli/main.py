"""The `penstock` command: its groups, shared options and exit codes."""

from __future__ import annotations

import importlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock import __version__
from penstock.cli.output import echo_json
from penstock.distribution import how_to_install
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

# Exit codes, listed in docs/cli.md. Click itself uses 2 for an invalid command line.
FAILED = 1
WRONG_USAGE = click.UsageError.exit_code
UNREACHABLE = 3
NOT_ALLOWED = 4
NOT_FOUND = 5
DAMAGED = 6
# The exit code that shells report for a command that SIGINT ended.
INTERRUPTED = 128 + signal.SIGINT


class Failure(click.ClickException):
    """An error that is printed as one line on standard error, without a traceback."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc] # click reads it from the instance

    def show(self, file: Any = None) -> None:
        click.echo(f"penstock: {self.format_message()}", err=True, file=file)


def add_hint(error: click.NoSuchOption, hint: str) -> click.NoSuchOption:
    """Returns the error with a hint after its message."""
    return click.NoSuchOption(
        error.option_name, f"{error.message} {hint}", error.possibilities, error.ctx
    )


# The module of each command that is defined elsewhere. It is imported when the command is used.
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
    """Imports commands when they are used, and maps errors to one line and an exit code."""

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
            raise add_hint(error, "Put options after the command.") from None

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(context, arguments)
        except click.NoSuchCommand as error:
            # click would suggest only commands that are imported already.
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
            raise  # the reader closed the pipe: click exits without a message
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


# The port of the dashboard under `penstock up` if http_port is not set.
DEFAULT_HTTP_PORT = 8089

root_option = click.option(
    "--root",
    metavar="DIR",
    help="Root directory of the broker. By default $STREAM_MANAGER_STORE_ROOT_DIR or ~/.penstock.",
)
config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Configuration file. By default penstock.toml in the current directory.",
)
http_port_option = click.option(
    "--http-port",
    type=int,
    metavar="PORT",
    help="Port for the dashboard, /metrics and /healthz; 0 picks a free port.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def settings_from(config: Path | None, **flags: Any) -> Settings:
    if flags.get("root"):
        # A path on the command line may be relative to the current directory; a setting may not.
        flags["root"] = str(Path(flags["root"]).absolute())
    return load_settings(os.environ, flags, config)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="penstock")
@click.option("--supervised", is_flag=True, hidden=True)
def main(supervised: bool) -> None:
    """An open stream manager.

    It stores device data at the edge, serves it to local programs, and exports it to the cloud.

    \b
      penstock up                    run the broker, the exports and the dashboard
      penstock streams create NAME   create a stream
      penstock append NAME MESSAGE   append a message
      penstock read NAME             print the stored messages
      penstock status --watch        watch streams and exports
      penstock doctor                find problems and how to fix them
    """
    if supervised:
        from penstock.cli.supervision import end_with_supervisor

        end_with_supervisor()


@main.command()
@root_option
@click.option(
    "--host", metavar="ADDRESS", help="Address to listen on; needs TLS unless it is loopback."
)
@click.option("--port", type=int, metavar="PORT", help="Port for clients; 0 picks a free port.")
@http_port_option
@click.option("--unix-socket", metavar="PATH", help="Listen on this Unix socket too.")
@click.option("--log-level", metavar="LEVEL", help="TRACE, DEBUG, INFO, WARN or ERROR.")
@click.option("--log-format", metavar="FORMAT", help="human or json.")
@click.option("--json", "as_json", is_flag=True, help="Same as --log-format json.")
@config_option
def serve(config: Path | None, as_json: bool, **flags: Any) -> None:
    """Run the broker until SIGTERM or Ctrl-C.

    It prints `penstock ready HOST:PORT` once clients can connect. An option overrides the setting
    of the same name; `penstock settings` lists all settings. Exports need a pipeline too: use
    `penstock up`, or `penstock pipeline` beside the broker.
    """
    if as_json:
        flags["log_format"] = "json"
    settings = settings_from(config, **flags)
    # Imported here: no other command needs an event loop.
    from penstock.broker.run import serve as run

    try:
        run(settings, _services(settings))
    except SettingError as error:
        # The settings are valid, but cannot be used: the port is taken, for example.
        raise Failure(str(error)) from None


def _services(settings: Settings) -> list[BrokerService]:
    """Services that run in the broker's event loop. Each needs additional packages."""
    from penstock.greengrass.component import find_component

    # The component starts first, so that its tokens are accepted from the start.
    component = find_component(os.environ)
    services: list[BrokerService] = [component] if component is not None else []
    if settings.http_port is not None:
        try:
            from penstock.web.web_server import WebServer
        except ImportError as error:
            raise Failure(
                f"the dashboard needs more packages: {how_to_install('web')} ({error})"
            ) from None
        services.append(WebServer())
    return services


@main.command()
@json_option
def settings(as_json: bool) -> None:
    """Print all settings with defaults and allowed values."""
    from penstock.settings_reference import references, settings_page

    if as_json:
        echo_json([setting._asdict() for setting in references()])
    else:
        click.echo(settings_page(), nl=False)


@main.command()
@json_option
def version(as_json: bool) -> None:
    """Print the version of Penstock."""
    if as_json:
        echo_json({"version": __version__})
    else:
        click.echo(__version__)
