"""`penstock pipeline`: runs the exports of a broker on Spark."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import click

from penstock.cli.main import WRONG_USAGE, Failure, config_option, root_option, settings_from
from penstock.cli.signals import call_at_signal
from penstock.distribution import how_to_install


@click.command()
@root_option
@click.option(
    "--broker", metavar="HOST:PORT", help="Address of the broker. By default the broker of --root."
)
@click.option(
    "--master",
    metavar="URL",
    help="Master of a Spark cluster. By default Spark runs on the cores of this machine.",
)
@click.option(
    "--conf",
    "spark_settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Spark setting, as for spark-submit. May be repeated.",
)
@click.option(
    "--archive-classes",
    is_flag=True,
    help="Archive Spark's classes and exit; pipelines then start in half the time.",
)
# Pipelines no longer have checkpoints.
@click.option("--checkpoint", hidden=True)
@click.option("--log-level", metavar="LEVEL", help="TRACE, DEBUG, INFO, WARN or ERROR.")
@click.option("--json", "as_json", is_flag=True, help="Log as JSON.")
@config_option
def pipeline(
    root: str | None,
    broker: str | None,
    master: str | None,
    spark_settings: tuple[str, ...],
    archive_classes: bool,
    checkpoint: str | None,  # noqa: ARG001 - accepted from scripts of version 0.1
    log_level: str | None,
    as_json: bool,
    config: Path | None,
) -> None:
    """Run the exports of a broker on Spark until SIGTERM or Ctrl-C.

    It prints `penstock pipeline ready` once exports run. AWS endpoints, regions and credentials
    come from the usual places, such as AWS_REGION and AWS_PROFILE. `penstock up` runs a broker and
    a pipeline.
    """
    log_format = "json" if as_json else None
    settings = settings_from(config, root=root, log_level=log_level, log_format=log_format)
    host, port = _split(broker) if broker else (None, None)
    spark_config = dict(map(_split_setting, spark_settings))
    try:
        from penstock.pipeline import driver
        from penstock.spark import application
        from penstock.spark.options import BrokerOptions
        from penstock.spark.place import Place
    except ImportError as error:
        raise Failure(f"exports need Spark: {how_to_install('spark')} ({error})") from None
    from penstock.broker.logs import log_uncaught, pass_format_on, set_up_logs

    set_up_logs(settings.log_level, settings.log_format)
    log_uncaught()
    pass_format_on(settings.log_format)
    # The driver logs in one line that Java ended. py4j logs it again, to its own logger and to the
    # root logger, which no other code uses directly.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda _: False)
    if archive_classes:
        click.echo(f"penstock classes {application.archive_classes()}")
        return
    # With --broker, the root is used only to find the token.
    options = BrokerOptions(host=host, port=port, root=root if broker else settings.root)
    place = Place.find(options, wait=True)
    with place.connect(wait=True) as client:
        # An empty commit checks the token before Spark starts, which takes seconds.
        client.commit_exports([])
    running = driver.PipelineDriver(place, settings, master=master, config=spark_config)

    def stop() -> None:
        running.request_stop()
        if not running.has_begun:
            # Spark cannot be interrupted while it starts, and no delivery is in flight. Java ends
            # with this process.
            running.discard()
            os._exit(0)

    call_at_signal((signal.SIGTERM, signal.SIGINT), stop)
    try:
        running.run(lambda: click.echo("penstock pipeline ready"))
    except driver.PipelineFailedError as error:
        raise Failure(str(error)) from None


def _split_setting(setting: str) -> tuple[str, str]:
    name, equals, value = setting.partition("=")
    if not equals or not name.startswith("spark."):
        raise Failure(f"--conf is {setting!r}: expected spark.NAME=VALUE", WRONG_USAGE)
    return name, value


def _split(broker: str) -> tuple[str, str]:
    host, colon, port = broker.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise Failure(f"--broker is {broker!r}: expected HOST:PORT", WRONG_USAGE)
    return host.strip("[]"), port
