"""`penstock up`: the broker, and what is to run beside it, with one command."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click

from penstock.cli.access import client_variables
from penstock.cli.demo import DEVICES, run_demo
from penstock.cli.main import Failure, config_option, json_option, root_option, settings_from
from penstock.cli.output import echo_json

_MOMENT_SECONDS = 5


@click.command()
@root_option
@click.option("--port", type=int, help="The port for clients; 0 picks a free one.")
@click.option("--demo", is_flag=True, help="Let the devices of a small wind farm append.")
@json_option
@config_option
def up(root: str | None, port: int | None, demo: bool, as_json: bool, config: Path | None) -> None:
    """Run the broker, with demo devices if wanted, until Ctrl-C.

    With --json the line of readiness is followed by one with what `penstock env --json` prints,
    and logs are JSON.
    """
    settings = settings_from(config, root=root, port=port)
    command = [sys.executable, "-m", "penstock", "serve", "--root", settings.root]
    command += ["--port", str(settings.port)]
    if config is not None:
        command += ["--config", str(config)]
    if as_json:
        command.append("--json")
    # A session of its own: Ctrl-C is for this process, which then stops the broker.
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        assert broker.stdout is not None
        ready = broker.stdout.readline()
        if not ready.startswith("penstock ready"):
            raise Failure(f"the broker did not start (exit code {broker.wait()})")
        click.echo(ready.strip())
        if as_json:
            echo_json(client_variables(settings))
        else:
            click.echo(_summary(settings.root, demo))
        if demo:
            run_demo(settings.root_path)
        code = broker.wait()
        raise Failure(f"the broker ended by itself (exit code {code})")
    except ConnectionError:
        # It is gone, or about to be: its sockets close a moment before it ends.
        with contextlib.suppress(subprocess.TimeoutExpired):
            broker.wait(_MOMENT_SECONDS)
        raise Failure(f"the broker ended by itself (exit code {broker.returncode})") from None
    except KeyboardInterrupt:
        pass
    finally:
        broker.terminate()
        broker.wait()


def _summary(root: str, demo: bool) -> str:
    names = [device.stream for device in DEVICES]
    here = f"--root {shlex.quote(root)}"
    demo_lines = f"""\
  demo streams           {", ".join(names)}
  see them               {_program()} status --watch {here}
                         {_program()} tail -f {names[0]} {here}
"""
    return f"""
  streams are stored in  {root}
{demo_lines if demo else ""}\
  in another terminal    eval "$({_program()} env {here})"
                         and your Stream Manager program talks to this broker
  stop                   Ctrl-C
"""


def _program() -> str:
    return shlex.quote(sys.argv[0])
