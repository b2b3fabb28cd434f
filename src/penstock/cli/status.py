"""`penstock status`: how a broker, its streams and its exports are doing, once or all the time."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shlex
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, StrEnum, auto
from typing import Any, NamedTuple, Self

import click

from penstock.cli.main import UNREACHABLE, Failure, json_option
from penstock.cli.output import (
    echo_json,
    format_table,
    human_bytes,
    human_duration,
    printable,
)
from penstock.cli.target import Target, target_options
from penstock.client.blocking import StreamManagerClient
from penstock.errors import (
    MessageStoreReadErrorException,
    ResourceNotFoundException,
    StreamManagerException,
    UnknownOperationException,
)
from penstock.model import ExportStatus, MessageStreamInfo, to_wire
from penstock.model.export import messages_behind
from penstock.model.statistics import ExportStatistics, Statistics, StreamStatistics

_INTERVAL_SECONDS = 2.0
_CONNECT_SECONDS = 3.0
# A broker that does not say how it is doing within this time is not doing well.
_REQUEST_SECONDS = 10.0
# Fewer lines than this are for the streams and exports alone.
_TALL = 12


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
        client = connect_briefly(target, _CONNECT_SECONDS, _REQUEST_SECONDS)
    except (ConnectionError, TimeoutError) as error:
        root = f" --root {shlex.quote(target.root)}" if target.root else ""
        raise Failure(f"{error}; `penstock serve{root}` starts one", UNREACHABLE) from None
    with client:
        if watch:
            with contextlib.suppress(KeyboardInterrupt):
                _watch(client, _INTERVAL_SECONDS if interval is None else interval, as_json)
        elif as_json:
            echo_json(plain_picture(take_picture(client)))
        else:
            _print(picture_lines(take_picture(client)))


def connect_briefly(target: Target, connect_seconds: float, seconds: float) -> StreamManagerClient:
    """A client that soon says when nobody is there, and logs nothing."""
    # Above every level: a line of the log would stand in the middle of the screen.
    silent = logging.Logger(__name__, logging.CRITICAL + 1)
    return StreamManagerClient(
        target.host,
        target.port,
        connect_seconds,
        seconds,
        silent,
        unix_socket=target.unix_socket,
        root=target.root,
        tls=target.tls_ca,
        config=target.config,
        reconnect_timeout=0,
    )


# What is known


class Picture(NamedTuple):
    """What a broker said about itself at one moment, by our own clocks."""

    address: str
    version: str
    # Of a clock that only ever goes forward, for rates.
    seconds: float
    epoch_millis: int
    streams: list[StreamStatistics]
    # Streams that are there and damaged, and why.
    unreadable: dict[str, str]
    # None where the server is not a Penstock, and says nothing but how its streams are.
    broker: Statistics | None = None


# What StreamStatistics has and a server without extensions does not tell.
_UNTOLD = ("segments", "waitingReads")


def take_picture(client: StreamManagerClient) -> Picture:
    names = client.list_streams()
    broker = _try_statistics(client)
    infos: dict[str, MessageStreamInfo] = {}
    unreadable: dict[str, str] = {}
    for name in sorted(
        set(names) - {stream.name for stream in broker.streams} if broker else names
    ):
        try:
            infos[name] = client.describe_message_stream(name)
        except MessageStoreReadErrorException as error:
            unreadable[name] = error.message
        except ResourceNotFoundException:
            pass  # it was deleted a moment ago
    return Picture(
        client.address,
        client.server.version,
        time.monotonic(),
        time.time_ns() // 1_000_000,
        sorted(
            broker.streams if broker else map(_from_description, infos.values()),
            key=lambda stream: stream.name,
        ),
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


def _from_description(info: MessageStreamInfo) -> StreamStatistics:
    storage = info.storage_status
    statuses = {status.export_config_identifier: status for status in info.export_statuses}
    exports = []
    for kind, export in info.definition.export_definition.configs_by_kind():
        status = statuses.get(export.identifier) or ExportStatus(export.identifier)
        exports.append(
            ExportStatistics(
                identifier=export.identifier,
                kind=kind,
                is_paused=bool(export.disabled),
                last_exported_sequence_number=status.last_exported_sequence_number,
                messages_behind=messages_behind(
                    export,
                    status.last_exported_sequence_number,
                    storage.oldest_sequence_number,
                    storage.newest_sequence_number,
                ),
                last_export_time=status.last_export_time or None,
                error_message=status.error_message or "",
                exported_bytes=status.exported_bytes_from_stream,
                exported_messages=status.exported_messages_count,
            )
        )
    return StreamStatistics(
        name=info.definition.name,
        oldest_sequence_number=storage.oldest_sequence_number,
        newest_sequence_number=storage.newest_sequence_number,
        total_bytes=storage.total_bytes,
        max_size=info.definition.max_size,
        segments=0,
        waiting_reads=0,
        exports=exports,
    )


def plain_picture(picture: Picture) -> dict[str, Any]:
    """For programs: the names of the wire, and no key for what is not known."""
    plain: dict[str, Any] = {
        "address": picture.address,
        "time": picture.epoch_millis,
        "version": picture.version,
        **(to_wire(picture.broker) if picture.broker is not None else {}),
        "streams": [_plain_stream(stream) for stream in picture.streams],
    }
    if picture.broker is None:
        for stream in plain["streams"]:
            for untold in _UNTOLD:
                del stream[untold]
    plain["unreadableStreams"] = [
        {"name": name, "errorMessage": message} for name, message in picture.unreadable.items()
    ]
    return plain


def _plain_stream(stream: StreamStatistics) -> dict[str, Any]:
    plain: dict[str, Any] = to_wire(stream)
    for export, plain_export in zip(stream.exports, plain["exports"], strict=True):
        plain_export["state"] = export_state(export)
    return plain


# As lines for people


class Line(NamedTuple):
    text: str
    style: Mapping[str, Any] = {}


_HEADING = {"bold": True}
_DIM = {"dim": True}
_ALARM = {"fg": "red"}


class ExportState(StrEnum):
    """From the one that wants looking at most."""

    failing = "failing"
    behind = "behind"
    paused = "paused"
    idle = "idle"


_STATE_STYLE: dict[ExportState, Mapping[str, Any]] = {
    ExportState.failing: _ALARM,
    ExportState.behind: {"fg": "yellow"},
    ExportState.paused: _DIM,
    ExportState.idle: {},
}


def export_state(export: ExportStatistics) -> ExportState:
    if export.is_paused:
        return ExportState.paused
    if export.error_message:
        return ExportState.failing
    return ExportState.behind if export.messages_behind else ExportState.idle


class Since(NamedTuple):
    """What a picture is compared with for its rates."""

    # None where there is nothing to compare with: it is the first, or the broker began anew.
    before: Picture | None


def picture_lines(
    picture: Picture, since: Since | None = None, height: int | None = None
) -> list[Line]:
    """With rates if there is a `since`; of no more than so many lines."""
    if since and since.before and not _are_of_one_run(since.before, picture):
        since = Since(None)
    head = [*_server_lines(picture), *_alarm_lines(picture)]
    if height is None or height >= _TALL:
        head += _traffic_lines(picture, since)
    # There are two empty lines between the three parts.
    room = None if height is None else height - len(head) - 2
    streams, exports = _stream_lines(picture, since, room), _export_lines(picture)
    if room is not None:
        streams, exports = _fit(streams, exports, room)
    return [*head, Line(""), *streams, *([Line(""), *exports] if exports else [])][:height]


def _are_of_one_run(before: Picture, picture: Picture) -> bool:
    """Whether counters have gone on between the two, and not begun again."""
    if before.broker is None or picture.broker is None:
        return before.broker is picture.broker
    return before.broker.uptime_millis <= picture.broker.uptime_millis


def _server_lines(picture: Picture) -> Iterator[Line]:
    broker = picture.broker
    if broker is None:
        name = f"stream manager {picture.version}".strip()
        yield Line(f"{name} at {picture.address}", _HEADING)
        yield Line("it is no Penstock: how its streams are is all that it tells", _DIM)
        return
    words = [
        f"penstock {broker.version} at {picture.address}",
        f"up {human_duration(broker.uptime_millis)}",
        _count(broker.connections, "connection"),
        _count(broker.requests_failed, "failed request"),
    ]
    if broker.connections_refused:
        words.append(_count(broker.connections_refused, "refused connection"))
    if broker.connections_dropped:
        words.append(_count(broker.connections_dropped, "dropped connection"))
    yield Line(", ".join(words), _HEADING)


def _traffic_lines(picture: Picture, since: Since | None) -> Iterator[Line]:
    broker = picture.broker
    if broker is None:
        return
    headings = ["", "messages", "bytes"]
    rows = [
        ["appended", str(broker.messages_appended), human_bytes(broker.bytes_appended)],
        ["read", str(broker.messages_read), human_bytes(broker.bytes_read)],
    ]
    if since is not None:
        headings += ["messages/s", "bytes/s"]
        rates = ["-"] * 4
        if since.before is not None and since.before.broker is not None:
            old, seconds = since.before.broker, picture.seconds - since.before.seconds
            rates = [
                _rate((broker.messages_appended - old.messages_appended) / seconds),
                _bytes_rate((broker.bytes_appended - old.bytes_appended) / seconds),
                _rate((broker.messages_read - old.messages_read) / seconds),
                _bytes_rate((broker.bytes_read - old.bytes_read) / seconds),
            ]
        rows[0] += rates[:2]
        rows[1] += rates[2:]
    yield from map(Line, format_table(headings, rows))


def _alarm_lines(picture: Picture) -> Iterator[Line]:
    for name, message in picture.unreadable.items():
        yield Line(f"damaged: {name}: {printable(message)}", _ALARM)


def _stream_lines(picture: Picture, since: Since | None, room: int | None) -> list[Line]:
    if not picture.streams:
        return [Line("no streams; `penstock streams create` makes one")]
    headings = ["stream", "messages", "size", "full", "numbers"]
    if picture.broker is not None:
        headings += ["segments", "waiting"]
    if since is not None:
        headings[2:2], headings[4:4] = ["msg/s"], ["bytes/s"]
    growth = _growths(picture, since.before) if since and since.before else {}
    streams = picture.streams
    if room is not None and len(streams) >= room:
        # Only some fit: those where something happens.
        streams = sorted(streams, key=lambda stream: growth.get(stream.name, (0,)), reverse=True)
    rows = []
    for stream in streams:
        count = stream.newest_sequence_number - stream.oldest_sequence_number + 1
        numbers = f"{stream.oldest_sequence_number}..{stream.newest_sequence_number}"
        row = [
            stream.name,
            str(count),
            human_bytes(stream.total_bytes),
            _percent(stream.total_bytes, stream.max_size),
            numbers if count else "-",
        ]
        if picture.broker is not None:
            row += [str(stream.segments), str(stream.waiting_reads)]
        if since is not None:
            messages, size = growth.get(stream.name, (None, None))
            row[2:2], row[4:4] = [_rate(messages)], [_bytes_rate(size)]
        rows.append(row)
    return _table(headings, rows)


def _growths(picture: Picture, before: Picture) -> dict[str, tuple[float, float]]:
    """By name: messages a second, and bytes a second."""
    seconds = picture.seconds - before.seconds
    olds = {stream.name: stream for stream in before.streams}
    growths = {}
    for stream in picture.streams:
        messages, size = _growth(stream, olds.get(stream.name))
        growths[stream.name] = messages / seconds, size / seconds
    return growths


def _growth(stream: StreamStatistics, old: StreamStatistics | None) -> tuple[float, float]:
    """How many messages have come since, and their bytes."""
    first = old.newest_sequence_number + 1 if old is not None else 0
    messages = max(stream.newest_sequence_number + 1 - first, 0)
    if old is not None and old.oldest_sequence_number == stream.oldest_sequence_number:
        return messages, max(stream.total_bytes - old.total_bytes, 0)
    # Some were dropped meanwhile: those that came are taken to be like those that are there.
    stored = stream.newest_sequence_number - stream.oldest_sequence_number + 1
    return messages, messages * stream.total_bytes / stored if stored else 0.0


def _export_lines(picture: Picture) -> list[Line]:
    found = [
        (export_state(export), stream.name, export)
        for stream in picture.streams
        for export in stream.exports
    ]
    if not found:
        return []
    urgency = list(ExportState)
    found.sort(key=lambda entry: (urgency.index(entry[0]), entry[1], entry[2].identifier))
    rows = [
        [
            name,
            export.identifier,
            export.kind,
            state,
            str(export.messages_behind),
            str(export.last_exported_sequence_number)
            if export.last_exported_sequence_number >= 0
            else "-",
            _age(picture.epoch_millis, export.last_export_time),
            printable(export.error_message),
        ]
        for state, name, export in found
    ]
    headings = ["stream", "export", "kind", "state", "behind", "exported", "last export", "error"]
    return _table(headings, rows, [_STATE_STYLE[state] for state, _, _ in found])


def _table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Sequence[Mapping[str, Any]] | None = None,
) -> list[Line]:
    first, *others = format_table(headings, rows)
    return [
        Line(first, _HEADING),
        *(
            Line(text, style)
            for text, style in zip(others, styles or [{}] * len(rows), strict=True)
        ),
    ]


def _fit(streams: list[Line], exports: list[Line], height: int) -> tuple[list[Line], list[Line]]:
    """Both tables, cut so that they fit; each may have the lines that the other leaves."""
    for_exports = min(len(exports), max(height // 2, height - len(streams)))
    return (
        _cut(streams, height - for_exports, "streams"),
        _cut(exports, for_exports, "exports"),
    )


def _cut(table: list[Line], height: int, what: str) -> list[Line]:
    if len(table) <= height:
        return table
    kept = table[: max(height - 1, 0)]
    return [*kept, Line(f"and {len(table) - max(len(kept), 1)} more {what}", _DIM)]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _percent(size: int, most: int) -> str:
    share = size / most
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if 0 < value < 9.95 else f"{value:.0f}"


def _bytes_rate(value: float | None) -> str:
    return "-" if value is None else human_bytes(round(value))


def _age(now_millis: int, then_millis: int | None) -> str:
    if then_millis is None:
        return "never"
    return f"{human_duration(max(now_millis - then_millis, 0))} ago"


# Once


def uses_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _paint(line: Line, is_coloured: bool, width: int | None = None) -> str:
    text = line.text[:width]
    return click.style(text, **line.style) if is_coloured and line.style and text else text


def _print(lines: Sequence[Line]) -> None:
    is_coloured = uses_colour()
    click.echo("\n".join(_paint(line, is_coloured) for line in lines))


# Again and again


class View(NamedTuple):
    """What there is to show: the last two pictures, and what has gone wrong since."""

    picture: Picture
    before: Picture | None = None
    trouble: str = ""


def _watch(client: StreamManagerClient, interval: float, as_json: bool) -> None:
    # The first look may fail as any command: only later it is worth going on.
    view = View(take_picture(client))
    if as_json or not _is_screen():
        _watch_as_lines(client, view, interval, as_json)
    else:
        _watch_on_screen(client, view, interval)


def _is_screen() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _look(client: StreamManagerClient, view: View) -> View:
    try:
        return View(take_picture(client), None if view.trouble else view.picture)
    except (StreamManagerException, OSError) as error:
        return view._replace(trouble=str(error) or type(error).__name__)


def _watch_as_lines(
    client: StreamManagerClient, view: View, interval: float, as_json: bool
) -> None:
    due = time.monotonic()
    while True:
        if as_json:
            echo_json(_plain_view(view))
        else:
            _print([Line(time.strftime("%H:%M:%S")), *view_lines(view), Line("")])
        due = max(due + interval, time.monotonic())
        time.sleep(max(due - time.monotonic(), 0))
        view = _look(client, view)


def _plain_view(view: View) -> dict[str, Any]:
    if not view.trouble:
        return plain_picture(view.picture)
    return {
        "address": view.picture.address,
        "time": time.time_ns() // 1_000_000,
        "errorMessage": view.trouble,
    }


def view_lines(view: View, height: int | None = None) -> list[Line]:
    if view.trouble:
        return [Line(f"not reachable, trying again: {printable(view.trouble)}", _ALARM)]
    return picture_lines(view.picture, Since(view.before), height)


def screen_lines(view: View, interval: float, width: int, height: int) -> list[Line]:
    """As `view_lines`, but while nobody answers, what was last seen stays where it was."""
    if view.trouble:
        seen = picture_lines(view.picture, Since(view.before), height)
        return [*view_lines(view), *(Line(line.text, _DIM) for line in seen[1:])]
    first, *others = view_lines(view, height)
    hint = f"every {interval:g} s, q ends"
    room = width - len(hint)
    if len(first.text) + 2 <= room:
        first = first._replace(text=f"{first.text:<{room}}{hint}")
    return [first, *others]


def _watch_on_screen(client: StreamManagerClient, view: View, interval: float) -> None:
    due = time.monotonic() + interval
    is_coloured = uses_colour()
    with Screen() as screen:
        while True:
            width, height = shutil.get_terminal_size()
            # What clears the rest of a line would take the last character of a full one with it.
            width -= 1
            lines = screen_lines(view, interval, width, height)
            screen.draw([_paint(line, is_coloured, width) for line in lines])
            event = screen.wait(max(due - time.monotonic(), 0))
            if event is Event.end:
                return
            if event is Event.time:
                view = _look(client, view)
                due = max(due + interval, time.monotonic())


class Event(Enum):
    time = auto()
    redraw = auto()
    end = auto()


class Screen:
    """A terminal that shows one page in place of what was there, and gives that back at the end.

    A signal wakes `wait`: the window has another size, or the program goes on after Ctrl-Z.
    """

    # Another page, no cursor, lines that are cut and not wrapped; and all of it undone.
    _ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
    _LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"

    def __enter__(self) -> Self:
        self._has_keys = sys.stdin.isatty()
        if self._has_keys:
            self._attributes = termios.tcgetattr(sys.stdin)
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._wakeup_before = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._handlers_before = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGWINCH, lambda *_: None),
                (signal.SIGTERM, lambda *_: sys.exit(0)),
                (signal.SIGTSTP, lambda *_: self._suspend()),
            )
        }
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._woken)
        os.close(self._waker)

    def _begin(self) -> None:
        if self._has_keys:
            tty.setcbreak(sys.stdin, termios.TCSADRAIN)
        _write(self._ENTER)

    def _end(self) -> None:
        _write(self._LEAVE)
        if self._has_keys:
            # What was typed meanwhile was meant for this program, not for the shell.
            termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, self._attributes)

    def _suspend(self) -> None:
        self._end()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._begin()

    def draw(self, lines: Sequence[str]) -> None:
        # One write, and nothing is erased before it is drawn over: it does not flicker.
        _write("\x1b[H" + "\x1b[K\n".join(lines) + "\x1b[K\x1b[J")

    def wait(self, seconds: float) -> Event:
        sources = [self._woken, *([sys.stdin.fileno()] if self._has_keys else [])]
        ready, _, _ = select.select(sources, [], [], seconds)
        if self._woken in ready:
            os.read(self._woken, 4096)
            return Event.redraw
        if not ready:
            return Event.time
        keys = os.read(sys.stdin.fileno(), 1024)
        if not keys or b"q" in keys or b"Q" in keys:
            return Event.end
        return Event.redraw


def _write(text: str) -> None:
    # Past the buffer of standard output, which a signal's handler could not write to while it is
    # being written.
    data = text.encode(sys.stdout.encoding, "replace")
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]
