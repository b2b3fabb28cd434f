"""`penstock status`: its output, once and with --watch."""

from __future__ import annotations

import json
import re
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.status import View, screen_lines
from penstock.wire.operations import Operation
from tests.client.servers import Relay
from tests.support import (
    PENSTOCK,
    LocalBroker,
    Reachable,
    append,
    create,
    wait_until,
)

from .command import Finished, penstock
from .messaging import Started
from .snapshots import export, snapshot, stream
from .terminal import Terminal

EXPORTS = {
    "kinesis": [{"identifier": "cloud", "kinesisStreamName": "all"}],
    "http": [{"identifier": "web", "uri": "http://127.0.0.1:9/", "disabled": True}],
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reachable]:
    with LocalBroker(tmp_path_factory.mktemp("status") / "root") as broker:
        with broker.connect() as client:
            create(
                client, "sensor 1", exportDefinition=EXPORTS, maxSize=1024, streamSegmentSize=1024
            )
            for _ in range(5):
                append(client, "sensor 1", b"x" * 100)
            create(client, "empty")
        yield broker


def status(broker: Reachable, *words: str, **environment: Any) -> Finished:
    return penstock("status", "--root", str(broker.root), *words, **environment)


def rows(finished: Finished, first: str) -> list[list[str]]:
    """The cells of the rows that begin with `first`."""
    lines = finished.output.splitlines()
    return [re.split(r"\s{2,}", line) for line in lines if line.startswith(first + "  ")]


# Once


def test_status_shows_broker_streams_and_exports(broker: Reachable) -> None:
    finished = status(broker)

    assert finished.code == 0
    first = finished.output.splitlines()[0]
    assert first.startswith("penstock 0.")
    assert f" at 127.0.0.1:{broker.port}, up " in first
    assert "failed request" in first
    assert rows(finished, "appended") == [["appended", "5", "500 B"]]
    assert rows(finished, "STREAM")[0] == [
        *["STREAM", "MESSAGES", "SIZE", "FULL", "NUMBERS", "SEGMENTS", "WAITING"]
    ]
    assert rows(finished, "empty") == [["empty", "0", "0 B", "0%", "-", "1", "0"]]
    assert rows(finished, "sensor 1") == [
        ["sensor 1", "5", "500 B", "49%", "0..4", "1", "0"],
        ["sensor 1", "cloud", "kinesis", "due", "5", "-", "never"],
        ["sensor 1", "web", "http", "paused", "5", "-", "never"],
    ]
    assert "\x1b" not in finished.output


def test_status_prints_json(broker: Reachable) -> None:
    plain = json.loads(status(broker, "--json").output)

    assert plain["address"] == f"127.0.0.1:{broker.port}"
    assert plain["messagesAppended"] == 5
    assert plain["unreadableStreams"] == []
    empty, sensor = plain["streams"]
    assert (empty["name"], sensor["name"]) == ("empty", "sensor 1")
    assert sensor["newestSequenceNumber"] == 4
    assert [(export["identifier"], export["state"]) for export in sensor["exports"]] == [
        ("web", "paused"),
        ("cloud", "due"),
    ]


def test_appends_and_reads_are_counted(broker: Reachable) -> None:
    with broker.connect() as client:
        before = json.loads(status(broker, "--json").output)
        client.call(Operation.ReadMessages, streamName="sensor 1")
        after = json.loads(status(broker, "--json").output)

    assert after["messagesRead"] == before["messagesRead"] + 1
    assert after["bytesRead"] == before["bytesRead"] + 100


def test_unreachable_broker_fails_with_a_hint() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        finished = penstock("status", "--port", str(port))

    assert finished.code == 3
    assert finished.error_lines == [
        f"penstock: no stream manager answers on 127.0.0.1:{port}: Connection refused; "
        "`penstock serve` starts one"
    ]


def test_unknown_token_fails(broker: Reachable) -> None:
    for words in ([], ["--watch"]):
        finished = status(broker, *words, AWS_CONTAINER_AUTHORIZATION_TOKEN="wrong")

        assert finished.code == 4
        assert len(finished.error_lines) == 1
        assert "the token is not known to this server" in finished.error


def test_interval_requires_watch(broker: Reachable) -> None:
    finished = status(broker, "--interval", "1")

    assert finished.code == 2
    assert "--interval requires --watch" in finished.error


def test_damaged_stream_is_named(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with LocalBroker(root) as broker, broker.connect() as client:
        create(client, "bad")
        create(client, "good")
    with sqlite3.connect(root / "catalog.sqlite") as catalog:
        catalog.execute("UPDATE stream SET definition = CAST('{' AS BLOB) WHERE name = 'bad'")
        ((directory,),) = catalog.execute("SELECT id FROM stream WHERE name = 'bad'").fetchall()
    catalog.close()
    (root / "streams" / directory / "stream.json").unlink()
    (root / "catalog.backup.sqlite").unlink()

    with LocalBroker(root) as broker:
        text = status(broker).output
        plain = json.loads(status(broker, "--json").output)

    assert [line for line in text.splitlines() if line.startswith("damaged: bad: ")]
    assert [stream["name"] for stream in plain["streams"]] == ["good"]
    assert [stream["name"] for stream in plain["unreadableStreams"]] == ["bad"]


def test_server_without_extensions_shows_streams_only(broker: Reachable) -> None:
    with Relay(broker, strip_extensions=True) as server:
        finished = penstock(
            *("status", "--port", str(server.port)),
            AWS_CONTAINER_AUTHORIZATION_TOKEN=server.token,
        )

    assert finished.code == 0
    assert finished.output.startswith("stream manager ")
    assert rows(finished, "empty") == [["empty", "0", "0 B", "0%", "-"]]
    assert rows(finished, "sensor 1") == [
        ["sensor 1", "5", "500 B", "49%", "0..4"],
        ["sensor 1", "cloud", "kinesis", "behind", "5", "-", "never"],
        ["sensor 1", "web", "http", "paused", "5", "-", "never"],
    ]


# The contents of the screen


@pytest.mark.parametrize("height", [5, 9, 12, 20, 60])
def test_screen_lines_fit_the_height(height: int) -> None:
    streams = [stream(f"stream-{i}", end=i, exports=[export()]) for i in range(20)]
    view = View(snapshot(2, *streams))

    assert len(screen_lines(view, 2, 80, height)) <= height
    assert len(screen_lines(view._replace(error="gone"), 2, 80, height)) <= height


def test_hint_to_quit_is_shown_if_it_fits() -> None:
    def first_line(width: int) -> str:
        return screen_lines(View(snapshot(2)), 0.5, width, 20)[0].text

    assert first_line(120).endswith("  every 0.5 s, q ends")
    assert len(first_line(120)) == 120
    assert "q ends" not in first_line(80)


def test_last_snapshot_stays_visible_while_unreachable() -> None:
    view = View(snapshot(2, stream("s", end=9)))
    before = screen_lines(view, 2, 80, 20)
    lines = screen_lines(view._replace(error="it is\ngone"), 2, 80, 20)

    assert lines[0].text == "unreachable, retrying: it is gone"
    assert [line.text for line in lines[1:]] == [line.text for line in before[1:]]
    assert all(line.style == {"dim": True} for line in lines[1:])


# Watching

WATCH = ("--watch", "--interval", "0.1")


def watch(broker: Reachable, **variables: Any) -> Terminal:
    return Terminal(
        str(PENSTOCK), "status", "--root", str(broker.root), *WATCH, rows=20, **variables
    )


def test_watch_shows_new_messages_until_q(tmp_path: Path) -> None:
    with (
        LocalBroker(tmp_path / "root") as broker,
        watch(broker) as terminal,
        broker.connect() as client,
    ):
        create(client, "watched")
        wait_until(lambda: terminal.cells("watched")[1:2] == ["0"])
        assert "every 0.1 s, q ends" in terminal.lines[0]

        append(client, "watched", b"x" * 10)
        wait_until(lambda: terminal.cells("watched")[1:2] == ["1"])

        def rate() -> float:
            append(client, "watched", b"x" * 10)
            return float(terminal.cells("watched")[2].replace("-", "0"))

        wait_until(lambda: rate() > 0)
        terminal.type("q")
        assert terminal.wait() == 0
        wait_until(terminal.is_restored)


def test_ctrl_c_ends_watch_and_restores_the_terminal(broker: Reachable) -> None:
    with watch(broker) as terminal:
        wait_until(lambda: terminal.frame)
        terminal.type("\x03")

        assert terminal.wait() == 0
        wait_until(terminal.is_restored)
        assert "Traceback" not in terminal.text


def test_watch_fits_the_window_after_a_resize(broker: Reachable) -> None:
    with watch(broker) as terminal:
        wait_until(lambda: terminal.cells("empty"))
        assert max(map(len, terminal.lines)) > 60

        terminal.resize(8, 40)
        wait_until(lambda: len(terminal.lines) <= 8 and max(map(len, terminal.lines)) < 40)
        assert any(line.startswith("and ") for line in terminal.lines)


def test_watch_continues_after_a_broker_restart(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker:
        with broker.connect() as client:
            create(client, "kept")
        with watch(broker) as terminal:
            wait_until(lambda: terminal.cells("kept"))
            broker.stop()
            wait_until(lambda: terminal.lines[0].startswith("unreachable, retrying: "))
            assert terminal.cells("kept")

            with LocalBroker(tmp_path / "root"):
                wait_until(lambda: terminal.lines[0].startswith("penstock 0."))
            terminal.type("q")
            assert terminal.wait() == 0


@pytest.mark.parametrize(("variables", "is_colored"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colors_are_used_unless_no_color_is_set(
    broker: Reachable, variables: dict[str, str], is_colored: bool
) -> None:
    with watch(broker, **variables) as terminal:
        wait_until(lambda: terminal.frame)
        assert ("\x1b[33m" in terminal.text) is is_colored


def test_watch_without_a_terminal_prints_each_refresh(
    broker: Reachable, start: Callable[..., Started]
) -> None:
    command = start(broker, "status", *WATCH)
    first_lines = 0
    while first_lines < 2:
        line = command.next_line()
        assert "\x1b" not in line
        first_lines += line.startswith("penstock 0.")
    finished = command.interrupt()

    assert finished.code == 0
    assert finished.error == ""


def test_watch_prints_json_lines_and_errors(tmp_path: Path, start: Callable[..., Started]) -> None:
    with LocalBroker(tmp_path / "root") as broker:
        command = start(broker, "status", *WATCH, "--json")
        first, second = (json.loads(command.next_line()) for _ in range(2))
        assert first["uptimeMillis"] < second["uptimeMillis"]
        broker.stop()
        error = wait_until(lambda: json.loads(command.next_line()).get("errorMessage"))
        assert f"127.0.0.1:{broker.port}" in error
        assert command.interrupt().code == 0


def test_dumb_terminal_is_not_a_screen(broker: Reachable) -> None:
    with watch(broker, TERM="dumb") as terminal:
        wait_until(lambda: terminal.text.count("penstock 0.") >= 2)
        assert "\x1b[?" not in terminal.text
        terminal.type("\x03")
        assert terminal.wait() == 0
