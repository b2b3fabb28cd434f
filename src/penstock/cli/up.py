"""`penstock up`: runs and supervises the broker, the pipeline and the sandbox."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import click

from penstock.broker.logs import LineRelay, log_uncaught, set_up_logs
from penstock.cli.credentials import client_variables, dashboard_link, find_address
from penstock.cli.main import (
    DEFAULT_HTTP_PORT,
    Failure,
    config_option,
    http_port_option,
    json_option,
    root_option,
    settings_from,
)
from penstock.cli.output import try_echo
from penstock.cli.signals import call_at_signal
from penstock.cli.supervision import SupervisedProgram
from penstock.demo.camera import CAMERA_STREAMS
from penstock.demo.demo import run_demo
from penstock.demo.devices import STREAMS
from penstock.discovery import Address
from penstock.distribution import how_to_install
from penstock.sandbox.client import SandboxClient
from penstock.settings import LoopbackAccess, Settings, variables_of

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
# The sandbox may run for weeks: it keeps little data.
_KEEP = ("--keep-mib", "16")


@click.command()
@root_option
@click.option("--port", type=int, metavar="PORT", help="Port for clients; 0 picks a free port.")
@http_port_option
@click.option("--no-dashboard", is_flag=True, help="Run without the dashboard and /metrics.")
@click.option("--no-pipeline", is_flag=True, help="Run without exports, and so without Spark.")
@click.option(
    "--sandbox",
    is_flag=True,
    help="Run simulated AWS services on this machine, and export to them.",
)
@click.option("--demo", is_flag=True, help="Simulate the devices of a small wind farm.")
@json_option
@config_option
def up(
    root: str | None,
    port: int | None,
    http_port: int | None,
    no_dashboard: bool,
    no_pipeline: bool,
    sandbox: bool,
    demo: bool,
    as_json: bool,
    config: Path | None,
) -> None:
    """Run the broker, the exports and the dashboard, until Ctrl-C.

    A process that ends is restarted. The dashboard is on port 8089, or on a free port with
    --port 0.

    It prints `penstock ready HOST:PORT` once clients can connect. --json prints one more line, with
    the variables of `penstock env --json` and of the sandbox, and logs as JSON.
    """
    log_format = "json" if as_json else None
    settings = settings_from(
        config, root=root, port=port, http_port=http_port, log_format=log_format
    )
    if no_dashboard and settings.http_port is not None:
        raise click.UsageError(
            f"--no-dashboard contradicts http_port, {settings.http_port}: leave out one of them"
        )
    set_up_logs(settings.log_level, settings.log_format)
    log_uncaught()
    chosen_http_port = None if no_dashboard else _choose_http_port(settings)
    has_pipeline = not no_pipeline and _has_spark()
    is_over = threading.Event()
    call_at_signal(_stop_signals(), is_over.set)
    programs: list[SupervisedProgram] = []
    devices: threading.Thread | None = None
    try:
        # The programs start in parallel, because the pipeline takes long.
        cloud = _SandboxProgram(settings) if sandbox else None
        broker = _BrokerProgram(settings, config, as_json, chosen_http_port, is_demo=demo)
        variables = cloud.variables if cloud is not None else {}
        if cloud is not None:
            cloud.start(programs)
        broker.start(programs)
        if has_pipeline:
            _start_pipeline(programs, settings, config, as_json, variables)
        if cloud is not None:
            cloud.wait(is_over)
        address = broker.wait(is_over)
        if as_json:
            try_echo(json.dumps({**client_variables(settings, address), **variables}))
        else:
            try_echo(_summary(settings, address, demo, has_pipeline, variables))
        if demo:
            client = cloud.client if cloud is not None else None
            arguments = (settings.root_path, is_over, client)
            devices = threading.Thread(target=run_demo, args=arguments, daemon=True)
            devices.start()
        _watch(programs, is_over)
    finally:
        is_over.set()
        if devices is not None:
            devices.join()
        # The pipeline stops before the broker, to report its deliveries.
        for program in reversed(programs):
            program.stop()


def _watch(programs: list[SupervisedProgram], is_over: threading.Event) -> None:
    """Restarts programs that end, until `is_over` is set."""
    while not is_over.wait(_POLL_SECONDS):
        for program in programs:
            if ready := _poll(program):
                try_echo(ready)


def _poll(program: SupervisedProgram) -> str | None:
    """Restarts a program that has ended. Returns its ready line when it is ready again."""
    event = program.poll()
    if event and event.startswith("the "):
        logger.warning("%s", event)
        return None
    return event


def _stop_signals() -> list[signal.Signals]:
    signals = [signal.SIGTERM, signal.SIGINT]
    # A closed terminal stops the command, unless nohup makes it ignore SIGHUP.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return signals


class _SandboxProgram:
    """The sandbox process. It keeps its port when it is restarted."""

    def __init__(self, settings: Settings) -> None:
        # A socket that does not listen reserves the port: the pipeline needs the address before
        # the sandbox is ready.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        port = str(self._reserved.getsockname()[1])
        self.client = SandboxClient(f"http://127.0.0.1:{port}")
        self._program = SupervisedProgram(
            "sandbox",
            lambda: _penstock("sandbox", "--port", port, "--create-streams", *_KEEP),
            "penstock sandbox ready",
            pass_on=LineRelay("sandbox", settings.log_format).pass_on,
        )

    def start(self, programs: list[SupervisedProgram]) -> None:
        self._program.start()
        programs.append(self._program)

    def wait(self, is_over: threading.Event) -> None:
        """Waits until the sandbox is ready."""
        _wait_for(self._program, is_over)

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables with which AWS SDKs find the sandbox."""
        return self.client.variables


def _choose_http_port(settings: Settings) -> int | None:
    if importlib.util.find_spec("starlette") is None:
        logger.warning("no dashboard: its packages are missing, %s", how_to_install("web"))
        return None
    if settings.http_port is not None:
        return settings.http_port
    return 0 if settings.port == 0 else DEFAULT_HTTP_PORT


class _BrokerProgram:
    """The broker process. It keeps its ports when it is restarted."""

    def __init__(
        self,
        settings: Settings,
        config: Path | None,
        as_json: bool,
        http_port: int | None,
        *,
        is_demo: bool,
    ) -> None:
        self._settings = settings
        self._shared = _shared(settings, config, as_json)
        self._port = settings.port
        self._http_port = http_port
        environment = dict(os.environ)
        if is_demo and settings.http_loopback_access is LoopbackAccess.STATISTICS:
            # The data of the demo is not secret.
            variable = variables_of("http_loopback_access")[0]
            environment[variable] = LoopbackAccess.MESSAGES.value
        self._program = SupervisedProgram(
            "broker",
            self._command,
            "penstock ready",
            environment,
            pass_on=LineRelay("broker", settings.log_format).pass_on,
        )

    def start(self, programs: list[SupervisedProgram]) -> None:
        self._program.start()
        programs.append(self._program)

    def wait(self, is_over: threading.Event) -> Address:
        """Waits until the broker is ready, prints its address and returns it."""
        ready = _wait_for(self._program, is_over)
        self._port = int(ready.rpartition(":")[2])
        # The broker may end as soon as it is ready, for example by a kill.
        while (address := find_address(self._settings)) is None:
            if is_over.wait(_POLL_SECONDS):
                raise click.exceptions.Exit
            _poll(self._program)
        try_echo(ready)
        url = address.http_url
        if url is not None:
            self._http_port = urlsplit(url).port
            try_echo(f"penstock dashboard {url}")
        return address

    def _command(self) -> list[str]:
        http = () if self._http_port is None else ("--http-port", str(self._http_port))
        return _penstock("serve", *self._shared, "--port", str(self._port), *http)


def _wait_for(program: SupervisedProgram, is_over: threading.Event) -> str:
    """Waits for the ready line and returns it."""
    ready = program.wait_until_ready(is_over)
    if is_over.is_set():
        raise click.exceptions.Exit
    if not ready:
        raise Failure(f"the {program.name} did not start (exit code {program.stop()})")
    return ready


def _start_pipeline(
    programs: list[SupervisedProgram],
    settings: Settings,
    config: Path | None,
    as_json: bool,
    variables: Mapping[str, str],
) -> None:
    pipeline = SupervisedProgram(
        "pipeline",
        lambda: _penstock("pipeline", *_shared(settings, config, as_json)),
        "penstock pipeline ready",
        {**os.environ, **variables},
        pass_on=LineRelay("pipeline", settings.log_format).pass_on,
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
    return [sys.executable, "-m", "penstock", "--supervised", *arguments]


def _has_spark() -> bool:
    if importlib.util.find_spec("pyspark") is not None:
        return True
    logger.warning("no exports: Spark is missing, %s", how_to_install("spark"))
    return False


def _summary(
    settings: Settings,
    address: Address,
    is_demo: bool,
    has_pipeline: bool,
    cloud: Mapping[str, str],
) -> str:
    here = f"--root {shlex.quote(settings.root)}"
    link = dashboard_link(settings, address)
    lines: list[tuple[str, str]] = []
    if link is not None:
        # Only the demo prints the link with the token, because many people may read a log.
        lines.append(("dashboard", link if is_demo else f"{_program()} dashboard {here}"))
    lines.append(("streams are stored in", settings.root))
    if has_pipeline:
        lines.append(("exports go to", cloud.get("AWS_ENDPOINT_URL") or "AWS"))
    if is_demo:
        names = [*STREAMS, *(CAMERA_STREAMS if cloud else ())]
        lines += [
            ("demo streams", ", ".join(names)),
            ("watch them", f"{_program()} status --watch {here}"),
            ("", f"{_program()} tail -f {names[0]} {here}"),
        ]
    lines += [
        ("in another terminal", f'eval "$({_program()} env {here})"'),
        ("", "then Stream Manager programs in it use this broker"),
        ("stop", "Ctrl-C"),
    ]
    return "".join(("\n", *(f"  {label:<22} {value}\n" for label, value in lines)))


def _program() -> str:
    return shlex.quote(sys.argv[0])
