"""`penstock status`: shows the status of a broker, its streams and exports, once or repeatedly."""

from __future__ import annotations

import contextlib
import time
from typing import Any, NamedTuple

import click

from penstock.cli.main import UNREACHABLE, Failure, json_option
from penstock.cli.output import Line, echo_json, echo_lines, printable, uses_color
from penstock.cli.overview import (
    ALARM,
    DIM,
    Rates,
    StatusSnapshot,
    rates_between,
    snapshot_lines,
    snapshot_to_dict,
    statistics_of,
)
from penstock.cli.screen import Screen, ScreenEvent, is_screen
from penstock.cli.target import BrokerTarget, target_options
from penstock.client.blocking import StreamManagerClient
from penstock.errors import (
    MessageStoreReadErrorException,
    ResourceNotFoundException,
    StreamManagerException,
    UnknownOperationException,
)
from penstock.model.statistics import Statistics

_INTERVAL_SECONDS = 2.0
_CONNECT_SECONDS = 3.0
# A broker that takes longer to report its status is considered unavailable.
_REQUEST_SECONDS = 10.0


@click.command()
@click.option("--watch", is_flag=True, help="Refresh the status, with rates, until q or Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    metavar="SECONDS",
    help=f"Time between refreshes with --watch.  [default: {_INTERVAL_SECONDS:g}]",
)
@json_option
@target_options
def status(target: BrokerTarget, watch: bool, interval: float | None, as_json: bool) -> None:
    """Show the status of the broker, its streams and its exports.

    A server that is not Penstock reports only its streams and exports. With --watch and --json,
    each refresh is one line.
    """
    if interval is not None and not watch:
        raise click.UsageError("--interval requires --watch")
    try:
        client = target.connect_briefly(_CONNECT_SECONDS, _REQUEST_SECONDS)
    except (ConnectionError, TimeoutError) as error:
        hint = f"; `{target.serve_command}` starts one" if target.is_local else ""
        raise Failure(f"{error}{hint}", UNREACHABLE) from None
    with client:
        if watch:
            with contextlib.suppress(KeyboardInterrupt):
                _watch(client, _INTERVAL_SECONDS if interval is None else interval, as_json)
        elif as_json:
            echo_json(snapshot_to_dict(take_snapshot(client)))
        else:
            echo_lines(snapshot_lines(take_snapshot(client)))


# Snapshots


def take_snapshot(client: StreamManagerClient) -> StatusSnapshot:
    names = client.list_streams()
    broker = _try_statistics(client)
    streams = list(broker.streams) if broker else []
    unreadable = {}
    for name in sorted(set(names) - {stream.name for stream in streams}):
        try:
            info = client.describe_message_stream(name)
        except MessageStoreReadErrorException as error:
            unreadable[name] = error.message
        except ResourceNotFoundException:
            continue  # the stream was deleted in the meantime
        else:
            if broker is None:
                streams.append(statistics_of(info))
    return StatusSnapshot(
        client.address,
        client.server.version,
        time.monotonic(),
        time.time_ns() // 1_000_000,
        sorted(streams, key=lambda stream: stream.name),
        unreadable,
        broker,
    )


def _try_statistics(client: StreamManagerClient) -> Statistics | None:
    if not client.server.has_extensions:
        return None
    try:
        return client.statistics()
    except UnknownOperationException:
        return None


# Watching


class View(NamedTuple):
    """The last snapshot, and the error of the last refresh."""

    snapshot: StatusSnapshot
    rates: Rates = Rates()
    error: str = ""


def _refresh(client: StreamManagerClient, view: View) -> View:
    try:
        snapshot = take_snapshot(client)
    except (StreamManagerException, OSError) as error:
        return view._replace(error=str(error) or type(error).__name__)
    return View(snapshot, rates_between(None if view.error else view.snapshot, snapshot))


def _watch(client: StreamManagerClient, interval: float, as_json: bool) -> None:
    # An error of the first request ends the command. Later errors are shown and retried.
    view = View(take_snapshot(client))
    if as_json or not is_screen():
        _watch_as_lines(client, view, interval, as_json)
    else:
        _watch_on_screen(client, view, interval)


def _watch_as_lines(
    client: StreamManagerClient, view: View, interval: float, as_json: bool
) -> None:
    due = time.monotonic()
    while True:
        if as_json:
            echo_json(_view_to_dict(view))
        else:
            echo_lines([Line(time.strftime("%H:%M:%S")), *_view_lines(view), Line("")])
        due = max(due + interval, time.monotonic())
        time.sleep(max(due - time.monotonic(), 0))
        view = _refresh(client, view)


def _view_to_dict(view: View) -> dict[str, Any]:
    if not view.error:
        return snapshot_to_dict(view.snapshot)
    return {
        "address": view.snapshot.address,
        "time": time.time_ns() // 1_000_000,
        "errorMessage": view.error,
    }


def _view_lines(view: View, height: int | None = None) -> list[Line]:
    if view.error:
        return [Line(f"unreachable, retrying: {printable(view.error)}", ALARM)]
    return snapshot_lines(view.snapshot, view.rates, height)


def _watch_on_screen(client: StreamManagerClient, view: View, interval: float) -> None:
    due = time.monotonic() + interval
    is_colored = uses_color()
    with Screen() as screen:
        while True:
            width, height = screen.size
            lines = screen_lines(view, interval, width, height)
            screen.draw([line.paint(is_colored, width) for line in lines])
            event = screen.wait(max(due - time.monotonic(), 0))
            if event is ScreenEvent.end:
                return
            if event is ScreenEvent.time:
                view = _refresh(client, view)
                due = max(due + interval, time.monotonic())


def screen_lines(view: View, interval: float, width: int, height: int) -> list[Line]:
    """Like `_view_lines`, but the last snapshot stays visible while the broker is unreachable."""
    if view.error:
        seen = snapshot_lines(view.snapshot, view.rates, height)
        return [*_view_lines(view), *(Line(line.text, DIM) for line in seen[1:])]
    first, *others = _view_lines(view, height)
    hint = f"every {interval:g} s, q ends"
    room = width - len(hint)
    if len(first.text) + 2 <= room:
        first = first._replace(text=f"{first.text:<{room}}{hint}")
    return [first, *others]
