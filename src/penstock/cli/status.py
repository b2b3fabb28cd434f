"""`penstock status`: how a broker, its streams and its exports are doing, once or all the time."""

from __future__ import annotations

import contextlib
import time
from typing import Any, NamedTuple

import click

from penstock.cli.main import UNREACHABLE, Failure, json_option
from penstock.cli.output import Line, echo_json, echo_lines, printable, uses_colour
from penstock.cli.overview import (
    ALARM,
    DIM,
    Picture,
    Rates,
    picture_lines,
    plain_picture,
    rates_between,
    statistics_of,
)
from penstock.cli.screen import Screen, ScreenEvent, is_screen
from penstock.cli.target import Target, target_options
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
# A broker that does not say how it is doing within this time is not doing well.
_REQUEST_SECONDS = 10.0


@click.command()
@click.option("--watch", is_flag=True, help="Show it again and again, with rates, until q.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    metavar="SECONDS",
    help=f"With --watch: how long between two looks; {_INTERVAL_SECONDS:g} by default.",
)
@json_option
@target_options
def status(target: Target, watch: bool, interval: float | None, as_json: bool) -> None:
    """Show how the broker, its streams and its exports are doing."""
    if interval is not None and not watch:
        raise click.UsageError("--interval goes with --watch")
    try:
        client = target.connect_briefly(_CONNECT_SECONDS, _REQUEST_SECONDS)
    except (ConnectionError, TimeoutError) as error:
        hint = f"; `{target.serve_command}` starts one" if target.is_here else ""
        raise Failure(f"{error}{hint}", UNREACHABLE) from None
    with client:
        if watch:
            with contextlib.suppress(KeyboardInterrupt):
                _watch(client, _INTERVAL_SECONDS if interval is None else interval, as_json)
        elif as_json:
            echo_json(plain_picture(take_picture(client)))
        else:
            echo_lines(picture_lines(take_picture(client)))


# Looking


def take_picture(client: StreamManagerClient) -> Picture:
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
            continue  # it was deleted a moment ago
        else:
            if broker is None:
                streams.append(statistics_of(info))
    return Picture(
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
    """What there is to show: the last picture, and what has gone wrong since."""

    picture: Picture
    rates: Rates = Rates()
    trouble: str = ""


def _look_again(client: StreamManagerClient, view: View) -> View:
    try:
        picture = take_picture(client)
    except (StreamManagerException, OSError) as error:
        return view._replace(trouble=str(error) or type(error).__name__)
    return View(picture, rates_between(None if view.trouble else view.picture, picture))


def _watch(client: StreamManagerClient, interval: float, as_json: bool) -> None:
    # The first look may fail as any command: only later it is worth going on.
    view = View(take_picture(client))
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
            echo_json(_plain_view(view))
        else:
            echo_lines([Line(time.strftime("%H:%M:%S")), *_view_lines(view), Line("")])
        due = max(due + interval, time.monotonic())
        time.sleep(max(due - time.monotonic(), 0))
        view = _look_again(client, view)


def _plain_view(view: View) -> dict[str, Any]:
    if not view.trouble:
        return plain_picture(view.picture)
    return {
        "address": view.picture.address,
        "time": time.time_ns() // 1_000_000,
        "errorMessage": view.trouble,
    }


def _view_lines(view: View, height: int | None = None) -> list[Line]:
    if view.trouble:
        return [Line(f"not reachable, trying again: {printable(view.trouble)}", ALARM)]
    return picture_lines(view.picture, view.rates, height)


def _watch_on_screen(client: StreamManagerClient, view: View, interval: float) -> None:
    due = time.monotonic() + interval
    is_coloured = uses_colour()
    with Screen() as screen:
        while True:
            width, height = screen.size
            lines = screen_lines(view, interval, width, height)
            screen.draw([line.paint(is_coloured, width) for line in lines])
            event = screen.wait(max(due - time.monotonic(), 0))
            if event is ScreenEvent.end:
                return
            if event is ScreenEvent.time:
                view = _look_again(client, view)
                due = max(due + interval, time.monotonic())


def screen_lines(view: View, interval: float, width: int, height: int) -> list[Line]:
    """As `_view_lines`, but while nobody answers, what was last seen stays where it was."""
    if view.trouble:
        seen = picture_lines(view.picture, view.rates, height)
        return [*_view_lines(view), *(Line(line.text, DIM) for line in seen[1:])]
    first, *others = _view_lines(view, height)
    hint = f"every {interval:g} s, q ends"
    room = width - len(hint)
    if len(first.text) + 2 <= room:
        first = first._replace(text=f"{first.text:<{room}}{hint}")
    return [first, *others]
