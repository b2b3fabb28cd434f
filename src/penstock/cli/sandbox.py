"""`penstock sandbox`: a cloud on this machine, for trying things out."""

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
    help="The port for all services; 0 picks a free one.",
)
@click.option(
    "--kinesis-stream",
    "streams",
    multiple=True,
    metavar="NAME[:SHARDS]",
    help="A Kinesis stream that is there from the start. May be repeated.",
)
@click.option(
    "--bucket",
    "buckets",
    multiple=True,
    metavar="NAME",
    help="An S3 bucket that is there from the start. May be repeated.",
)
@click.option(
    "--create-streams", is_flag=True, help="Make Kinesis streams when they are first used."
)
@click.option(
    "--large-records", is_flag=True, help="Kinesis records of up to 10 MiB instead of 1 MiB."
)
@click.option(
    "--keep-mib",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="How much is kept, in memory, of each stream, channel, property and HTTP sink.",
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
    """Run a cloud on this machine until Ctrl-C: Kinesis, S3, IoT SiteWise, IoT Analytics.

    It is for trying things out: everything is in memory, and faults can be turned on. Only this
    machine reaches it, and it asks nobody who they are.
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
  AWS programs find it with
{exports}

  let something fail    curl -X PUT {faults} -d '{{"service": "kinesis", "throttle": true}}'
  let all work again    curl -X DELETE {faults}
  what was asked        curl {cloud.url}/_sandbox/calls
  stop                  Ctrl-C
"""
