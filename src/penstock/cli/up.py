"""`penstock up`: the broker and what belongs to it, with one command."""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import click

from penstock.broker.settings import Settings
from penstock.cli.access import client_variables
from penstock.cli.demo import DEVICES, run_demo
from penstock.cli.main import Failure, config_option, json_option, root_option, settings_from
from penstock.cli.output import echo_json
from penstock.cli.signals import call_at_signal
from penstock.cli.supervision import Program
from penstock.sandbox.client import SandboxClient

_LOOK_SECONDS = 0.1


@click.command()
@root_option
@click.option("--port", type=int, help="The port for clients; 0 picks a free one.")
@click.option("--no-pipeline", is_flag=True, help="Leave out the exports, and with them Spark.")
@click.option(
    "--sandbox",
    is_flag=True,
    help="Run a cloud on this machine as well, and export to that one.",
)
@click.option("--demo", is_flag=True, help="Let the devices of a small wind farm append.")
@json_option
@config_option
def up(
    root: str | None,
    port: int | None,
    no_pipeline: bool,
    sandbox: bool,
    demo: bool,
    as_json: bool,
    config: Path | None,
) -> None:
    """Run the broker and the pipeline that exports its streams, until Ctrl-C.

    Whichever of them dies is started again. With --json the line of readiness is followed by one
    with what `penstock env --json` prints, and logs are JSON.
    """
    settings = settings_from(config, root=root, port=port)
    has_pipeline = not no_pipeline and _has_spark()
    is_over = threading.Event()
    call_at_signal(_ends(), is_over.set)
    programs: list[Program] = []
    try:
        variables: Mapping[str, str] = {}
        if sandbox:
            variables = _start_sandbox(programs, is_over)
        _start_broker(programs, settings, config, as_json, is_over)
        if as_json:
            echo_json(client_variables(settings))
        else:
            click.echo(_summary(settings.root, demo, has_pipeline, variables))
        if has_pipeline:
            _start_pipeline(programs, settings, config, as_json, variables)
        if demo:
            arguments = (settings.root_path, is_over)
            threading.Thread(
                target=run_demo, args=arguments, kwargs={"exports": sandbox}, daemon=True
            ).start()
        while not is_over.wait(_LOOK_SECONDS):
            for program in programs:
                news = program.look()
                if news:
                    click.echo(news, err=news.startswith("the "))
    finally:
        # The pipeline tells the broker what it has done before that one ends.
        for program in reversed(programs):
            program.stop()


def _ends() -> list[signal.Signals]:
    """The signals that end it."""
    ends = [signal.SIGTERM, signal.SIGINT]
    # With nohup it is to outlive its terminal; else nothing may be left running without it.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        ends.append(signal.SIGHUP)
    return ends


def _start_sandbox(programs: list[Program], is_over: threading.Event) -> Mapping[str, str]:
    """The variables that lead to it."""
    chosen = "0"
    cloud = Program(
        "sandbox",
        lambda: _penstock("sandbox", "--port", chosen, "--create-streams"),
        "penstock sandbox ready",
    )
    cloud.start()
    programs.append(cloud)
    url = _wait_for(cloud, is_over).rpartition(" ")[2]
    # One that is started again has to be found where it was.
    chosen = url.rpartition(":")[2]
    return SandboxClient(url).variables


def _start_broker(
    programs: list[Program],
    settings: Settings,
    config: Path | None,
    as_json: bool,
    is_over: threading.Event,
) -> None:
    port = settings.port
    broker = Program(
        "broker",
        lambda: _penstock("serve", *_shared(settings, config, as_json), "--port", str(port)),
        "penstock ready",
    )
    broker.start()
    programs.append(broker)
    ready = _wait_for(broker, is_over)
    # Its clients look for it where it was.
    port = int(ready.rpartition(":")[2])
    click.echo(ready)


def _wait_for(program: Program, is_over: threading.Event) -> str:
    """The line with which it tells that it is ready."""
    ready = program.wait_until_ready(is_over)
    if is_over.is_set():
        raise click.exceptions.Exit
    if not ready:
        raise Failure(f"the {program.name} did not start (exit code {program.stop()})")
    return ready


def _start_pipeline(
    programs: list[Program],
    settings: Settings,
    config: Path | None,
    as_json: bool,
    variables: Mapping[str, str],
) -> None:
    pipeline = Program(
        "pipeline",
        lambda: _penstock("pipeline", *_shared(settings, config, as_json)),
        "penstock pipeline ready",
        {**os.environ, **variables},
    )
    pipeline.start()
    programs.append(pipeline)


def _shared(settings: Settings, config: Path | None, as_json: bool) -> list[str]:
    return [
        *("--root", settings.root),
        *(("--config", str(config)) if config is not None else ()),
        *(("--json",) if as_json else ()),
    ]


def _penstock(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "penstock", *arguments]


def _has_spark() -> bool:
    if importlib.util.find_spec("pyspark") is not None:
        return True
    click.echo("nothing is exported: that needs Spark, pip install 'penstock[spark]'", err=True)
    return False


def _summary(root: str, demo: bool, has_pipeline: bool, cloud: Mapping[str, str]) -> str:
    names = [device.stream for device in DEVICES]
    here = f"--root {shlex.quote(root)}"
    demo_lines = f"""\
  demo streams           {", ".join(names)}
  see them               {_program()} status --watch {here}
                         {_program()} tail -f {names[0]} {here}
"""
    exports = f"exports go to          {cloud.get('AWS_ENDPOINT_URL') or 'AWS'}"
    return f"""
  streams are stored in  {root}
{f"  {exports}{chr(10)}" if has_pipeline else ""}\
{demo_lines if demo else ""}\
  in another terminal    eval "$({_program()} env {here})"
                         and your Stream Manager program talks to this broker
  stop                   Ctrl-C
"""


def _program() -> str:
    return shlex.quote(sys.argv[0])
