"""`penstock sandbox`: runs simulated AWS services on this machine."""

from __future__ import annotations

import re
import shlex
import signal
import threading

import click

from penstock.broker.logs import log_uncaught, set_up_logs
from penstock.cli.main import Failure, json_option
from penstock.cli.output import echo_json
from penstock.cli.signals import call_at_signal
from penstock.sandbox.client import SandboxError
from penstock.sandbox.local_sandbox import Sandbox
from penstock.settings import LogFormat, LogLevel

_PORT = 4566


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=_PORT,
    show_default=True,
    metavar="PORT",
    help="Port for all services; 0 picks a free port.",
)
@click.option(
    "--kinesis-stream",
    "streams",
    multiple=True,
    metavar="NAME[:SHARDS]",
    help="Create this Kinesis stream at start. May be repeated.",
)
@click.option(
    "--bucket",
    "buckets",
    multiple=True,
    metavar="NAME",
    help="Create this S3 bucket at start. May be repeated.",
)
@click.option("--create-streams", is_flag=True, help="Create Kinesis streams on first use.")
@click.option(
    "--large-records", is_flag=True, help="Accept Kinesis records up to 10 MiB, not 1 MiB."
)
@click.option(
    "--keep-mib",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Memory in MiB for the data of each stream, channel, property and HTTP sink.",
)
@json_option
def sandbox(
    port: int,
    streams: tuple[str, ...],
    buckets: tuple[str, ...],
    create_streams: bool,
    large_records: bool,
    keep_mib: int,
    as_json: bool,
) -> None:
    """Run simulated AWS services on this machine until Ctrl-C.

    The services are Kinesis, S3, IoT SiteWise and IoT Analytics, for tests and experiments. The
    sandbox keeps data in memory and can inject faults. It listens on 127.0.0.1, accepts any
    credentials, and prints the variables that AWS programs need.
    """
    set_up_logs(LogLevel.WARN, LogFormat.HUMAN)
    log_uncaught()
    cloud = Sandbox(
        port,
        kinesis_streams=dict(_stream(text) for text in streams),
        buckets=buckets,
        create_streams=create_streams,
        large_records=large_records,
        keep_bytes=keep_mib * 1024 * 1024,
    )
    try:
        cloud.start()
    except SandboxError as error:
        raise Failure(str(error)) from None
    is_over = threading.Event()
    call_at_signal((signal.SIGTERM, signal.SIGINT), is_over.set)
    click.echo(f"penstock sandbox ready {cloud.url}")
    if as_json:
        echo_json({"url": cloud.url, "variables": cloud.variables})
    else:
        click.echo(_summary(cloud))
    is_over.wait()
    cloud.stop()


def _stream(text: str) -> tuple[str, int]:
    parts = re.fullmatch(r"([a-zA-Z0-9_.-]{1,128})(?::([1-9]\d{0,2}))?", text)
    if parts is None:
        raise click.BadParameter(
            f"{text!r} is not NAME or NAME:SHARDS, such as turbines:2",
            param_hint="--kinesis-stream",
        )
    return parts[1], int(parts[2] or 1)


def _summary(cloud: Sandbox) -> str:
    exports = "\n".join(
        f"    export {name}={shlex.quote(value)}" for name, value in cloud.variables.items()
    )
    faults = f"{cloud.url}/_sandbox/faults"
    return f"""
  variables for AWS programs
{exports}

  inject a fault      curl -X PUT {faults} -d '{{"service": "kinesis", "throttle": true}}'
  remove all faults   curl -X DELETE {faults}
  list the calls      curl {cloud.url}/_sandbox/calls
  stop                Ctrl-C
"""
