"""`penstock status`: what it tells, once or on a screen that it keeps up to date."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import signal
import socket
import sqlite3
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import cbor2
import pytest

from penstock.cli.status import (
    ExportState,
    Line,
    Picture,
    Since,
    View,
    export_state,
    picture_lines,
    screen_lines,
)
from penstock.model.statistics import ExportStatistics, Statistics, StreamStatistics
from penstock.wire.frames import HEADER, encode_frame
from penstock.wire.operations import Operation
from tests.support import (
    PATIENCE_S,
    PENSTOCK,
    BrokerProcess,
    append,
    clean_environment,
    create,
    drain,
    wait_until,
)

from .command import Finished, penstock

EXPORTS = {
    "kinesis": [{"identifier": "cloud", "kinesisStreamName": "all"}],
    "http": [{"identifier": "web", "uri": "http://127.0.0.1:9/", "disabled": True}],
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("status") / "root") as broker:
        with broker.connect() as client:
            create(
                client, "sensor 1", exportDefinition=EXPORTS, maxSize=1024, streamSegmentSize=1024
            )
            for _ in range(5):
                append(client, "sensor 1", b"x" * 100)
            create(client, "empty")
        yield broker


def status(broker: BrokerProcess, *words: str, **environment: Any) -> Finished:
    return penstock("status", "--root", str(broker.root), *words, **environment)


def words_of(finished: Finished, first: str) -> list[str]:
    """The cells of the row that begins so."""
    (row,) = [line for line in finished.output.splitlines() if line.startswith(first + "  ")]
    return re.split(r"\s{2,}", row)


# Once


def test_the_broker_its_streams_and_its_exports_are_shown(broker: BrokerProcess) -> None:
    finished = status(broker)

    assert finished.code == 0
    first = finished.output.splitlines()[0]
    assert first.startswith("penstock 0.")
    assert f" at 127.0.0.1:{broker.port}, up " in first
    assert "failed request" in first
    assert words_of(finished, "appended") == ["appended", "5", "500 B"]
    assert [row.split() for row in finished.output.splitlines() if "SEGMENTS" in row] == [
        ["STREAM", "MESSAGES", "SIZE", "FULL", "NUMBERS", "SEGMENTS", "WAITING"]
    ]
    assert words_of(finished, "empty") == ["empty", "0", "0 B", "0%", "-", "1", "0"]
    rows = [
        re.split(r"\s{2,}", row) for row in finished.output.splitlines() if row[:8] == "sensor 1"
    ]
    assert rows == [
        ["sensor 1", "5", "500 B", "49%", "0..4", "1", "0"],
        ["sensor 1", "cloud", "kinesis", "behind", "5", "-", "never"],
        ["sensor 1", "web", "http", "paused", "5", "-", "never"],
    ]
    assert "\x1b" not in finished.output


def test_programs_get_the_statistics_as_json(broker: BrokerProcess) -> None:
    plain = json.loads(status(broker, "--json").output)

    assert plain["address"] == f"127.0.0.1:{broker.port}"
    assert plain["messagesAppended"] == 5
    assert plain["unreadableStreams"] == []
    empty, sensor = plain["streams"]
    assert (empty["name"], sensor["name"]) == ("empty", "sensor 1")
    assert sensor["newestSequenceNumber"] == 4
    assert [(export["identifier"], export["state"]) for export in sensor["exports"]] == [
        ("web", "paused"),
        ("cloud", "behind"),
    ]


def test_that_nobody_answers_is_told_in_a_line_that_says_where_and_what_to_do() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        finished = penstock("status", "--port", str(port))

    assert finished.code == 3
    assert finished.error_lines == [
        f"penstock: no stream manager answers on 127.0.0.1:{port}: Connection refused; "
        "`penstock serve` starts one"
    ]


def test_a_token_that_is_not_known_is_told(broker: BrokerProcess) -> None:
    for words in ([], ["--watch"]):
        finished = status(broker, *words, AWS_CONTAINER_AUTHORIZATION_TOKEN="wrong")

        assert finished.code == 4
        assert len(finished.error_lines) == 1
        assert "the token is not known to this server" in finished.error


def test_an_interval_is_for_watching(broker: BrokerProcess) -> None:
    finished = status(broker, "--interval", "1")

    assert finished.code == 2
    assert "--interval goes with --watch" in finished.error


def test_a_stream_that_is_damaged_is_named(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "root")
    with broker, broker.connect() as client:
        create(client, "bad")
        create(client, "good")
    with sqlite3.connect(broker.root / "catalog.sqlite") as catalog:
        catalog.execute("UPDATE stream SET definition = CAST('{' AS BLOB) WHERE name = 'bad'")
        ((directory,),) = catalog.execute("SELECT id FROM stream WHERE name = 'bad'").fetchall()
    catalog.close()
    (broker.root / "streams" / directory / "stream.json").unlink()

    with broker:
        text = status(broker).output
        plain = json.loads(status(broker, "--json").output)

    assert [line for line in text.splitlines() if line.startswith("damaged: bad: ")]
    assert [stream["name"] for stream in plain["streams"]] == ["good"]
    assert [stream["name"] for stream in plain["unreadableStreams"]] == ["bad"]


# A server without extensions


@contextmanager
def plain_server(broker: BrokerProcess) -> Iterator[int]:
    """The port of a broker that does not hear of extensions, as every other stream manager."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                server = socket.create_connection(("127.0.0.1", broker.port))
                _pass_connect(client, server)
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _pass_connect(client: socket.socket, server: socket.socket) -> None:
    reader = client.makefile("rb", buffering=0)
    head = _take(reader, 1 + HEADER.size)
    length, operation = HEADER.unpack(head[1:])
    request = cbor2.loads(_take(reader, length - 1))
    del request["penstockExtensions"]
    server.sendall(head[:1] + encode_frame(operation, cbor2.dumps(request)))


def _take(reader: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += reader.read(size - len(data))
    return data


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    while data := source.recv(65_536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)


def test_of_a_server_without_extensions_there_are_its_streams(broker: BrokerProcess) -> None:
    with plain_server(broker) as port:

        def ask(*words: str) -> Finished:
            return penstock(
                *("status", "--port", str(port), *words),
                AWS_CONTAINER_AUTHORIZATION_TOKEN=broker.token,
            )

        finished = ask()
        plain = json.loads(ask("--json").output)

    assert finished.code == 0
    lines = finished.output.splitlines()
    assert lines[0].startswith("stream manager ")
    assert "SEGMENTS" not in finished.output
    assert words_of(finished, "empty") == ["empty", "0", "0 B", "0%", "-"]
    assert [line.split()[:6] for line in lines if "kinesis" in line] == [
        ["sensor", "1", "cloud", "kinesis", "behind", "5"]
    ]
    assert "messagesAppended" not in plain
    assert set(plain["streams"][1]) == {
        "name",
        "oldestSequenceNumber",
        "newestSequenceNumber",
        "totalBytes",
        "maxSize",
        "exports",
    }


# The lines


def export(**fields: Any) -> ExportStatistics:
    defaults = {
        "identifier": "cloud",
        "kind": "kinesis",
        "is_paused": False,
        "last_exported_sequence_number": -1,
        "messages_behind": 0,
        "last_export_time": None,
        "error_message": "",
        "exported_bytes": 0,
        "exported_messages": 0,
    }
    return ExportStatistics(**{**defaults, **fields})


def stream(name: str = "s", oldest: int = 0, end: int = 0, **fields: Any) -> StreamStatistics:
    defaults = {
        "name": name,
        "oldest_sequence_number": oldest,
        "newest_sequence_number": end - 1,
        "total_bytes": 10 * (end - oldest),
        "max_size": 1000,
        "segments": 1,
        "waiting_reads": 0,
        "exports": [],
    }
    return StreamStatistics(**{**defaults, **fields})


def picture(seconds: float, *streams: StreamStatistics, **fields: Any) -> Picture:
    """Taken so long after the start of a broker."""
    defaults = {
        "version": "1",
        "uptime_millis": round(1000 * seconds),
        "connections": 1,
        "messages_appended": 0,
        "bytes_appended": 0,
        "messages_read": 0,
        "bytes_read": 0,
        "requests_failed": 0,
        "connections_accepted": 1,
        "connections_refused": 0,
        "connections_dropped": 0,
        "streams": list(streams),
    }
    broker = Statistics(**{**defaults, **fields})
    return Picture("127.0.0.1:8088", "1", seconds, 1_000_000, list(streams), {}, broker)


def row(lines: list[Line], first: str) -> list[str]:
    (found,) = [line.text for line in lines if line.text.startswith(first + "  ")]
    return re.split(r"\s{2,}", found)


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, ExportState.idle),
        ({"messages_behind": 3}, ExportState.behind),
        ({"messages_behind": 3, "error_message": "no"}, ExportState.failing),
        ({"messages_behind": 3, "error_message": "no", "is_paused": True}, ExportState.paused),
    ],
)
def test_an_export_is_in_one_of_four_states(fields: dict[str, Any], state: ExportState) -> None:
    assert export_state(export(**fields)) is state


def test_exports_that_fail_come_first_and_in_one_line_each() -> None:
    fine = export(identifier="fine", last_exported_sequence_number=7, last_export_time=910_000)
    broken = export(identifier="broken", messages_behind=2, error_message="no\x1b[2J\n  way")
    lines = picture_lines(picture(1, stream("s", end=8, exports=[fine, broken])))

    assert [re.split(r"\s{2,}", line.text) for line in lines[-2:]] == [
        ["s", "broken", "kinesis", "failing", "2", "-", "never", "no [2J way"],
        ["s", "fine", "kinesis", "idle", "0", "7", "1 min 30 s ago"],
    ]
    assert lines[-2].style == {"fg": "red"}


def test_rates_are_what_came_since_the_picture_before() -> None:
    before = picture(10, stream("s", end=5), messages_appended=5, bytes_appended=50)
    after = picture(12, stream("s", end=25), messages_appended=25, bytes_appended=5170)

    lines = picture_lines(after, Since(before))

    assert row(lines, "appended") == ["appended", "25", "5.05 KiB", "10", "2.5 KiB"]
    assert row(lines, "read") == ["read", "0", "0 B", "0", "0 B"]
    assert row(lines, "s")[1:5] == ["25", "10", "250 B", "100 B"]


def test_what_was_dropped_meanwhile_does_not_lower_the_rate() -> None:
    before = picture(10, stream("s", oldest=0, end=10))
    after = picture(12, stream("s", oldest=10, end=20))

    assert row(picture_lines(after, Since(before)), "s")[1:5] == ["10", "5.0", "100 B", "50 B"]


@pytest.mark.parametrize("before", [None, picture(500, stream("s", end=3))])
def test_there_are_no_rates_without_a_picture_of_the_same_run(before: Picture | None) -> None:
    lines = picture_lines(picture(2, stream("s", end=9)), Since(before))

    assert row(lines, "appended")[3:] == ["-", "-"]
    assert row(lines, "s")[1:5] == ["9", "-", "90 B", "-"]


@pytest.mark.parametrize("height", [5, 9, 12, 20, 60])
def test_a_screen_has_no_more_lines_than_there_is_room_for(height: int) -> None:
    streams = [stream(f"stream-{i}", end=i, exports=[export()]) for i in range(20)]
    lines = screen_lines(View(picture(2, *streams)), 2, 80, height)

    assert len(lines) <= height
    hidden = [line.text for line in lines if line.text.startswith("and ")]
    assert bool(hidden) == (height < 60)


def test_where_not_all_streams_fit_the_busiest_do() -> None:
    before = picture(2, *(stream(f"stream-{i:02}", end=1) for i in range(30)))
    after = picture(4, *(stream(f"stream-{i:02}", end=9 if i == 17 else 1) for i in range(30)))

    lines = picture_lines(after, Since(before), 14)
    names = [line.text.split()[0] for line in lines if line.text[:7] == "stream-"]

    assert names == [f"stream-{number}" for number in ("17", "00", "01", "02", "03", "04")]
    assert lines[-1].text == "and 24 more streams"


# Watching

WATCH = ("--watch", "--interval", "0.1")


class Terminal:
    """A program on a terminal of its own, and all that it has written there."""

    def __init__(self, *command: str, rows: int = 40, columns: int = 120, **variables: str) -> None:
        self._master, self._slave = pty.openpty()
        self.resize(rows, columns)
        self.attributes = termios.tcgetattr(self._slave)
        self._written = bytearray()
        environment = {"TERM": "xterm", **variables}
        self.process = subprocess.Popen(
            command,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            cwd="/",
            env={
                name: value
                for name, value in clean_environment(**environment).items()
                if name not in ("COLUMNS", "LINES") and (name != "NO_COLOR" or name in variables)
            },
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one call
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._slave)
        self._reader.join(PATIENCE_S)
        os.close(self._master)

    def _read(self) -> None:
        try:
            while data := os.read(self._master, 65_536):
                self._written += data
        except OSError:
            pass  # nobody has the other end any more

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    @property
    def text(self) -> str:
        return self._written.decode(errors="replace")

    @property
    def frame(self) -> str:
        """What was last drawn as a whole, without colours."""
        frames = re.findall(r"\x1b\[H(.*?)\x1b\[J", self.text, re.DOTALL)
        return re.sub(r"\x1b\[[\d;]*[mK]", "", frames[-1]) if frames else ""

    @property
    def lines(self) -> list[str]:
        return self.frame.split("\r\n")

    def cells(self, first: str) -> list[str]:
        for line in self.lines:
            if line.startswith(first + "  "):
                return re.split(r"\s{2,}", line)
        return []

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def is_restored(self) -> bool:
        """Its attributes are as they were, and the page of before is shown, with a cursor."""
        return termios.tcgetattr(self._slave) == self.attributes and bool(
            re.search(r"\x1b\[\?25h\x1b\[\?1049l\Z", self.text)
        )


def watch(broker: BrokerProcess, *words: str, **variables: Any) -> Terminal:
    command = [str(PENSTOCK), "status", "--root", str(broker.root), *WATCH, *words]
    return Terminal(*command, **variables)


def test_the_screen_changes_as_messages_come_until_q(broker: BrokerProcess) -> None:
    with watch(broker) as terminal, broker.connect() as client:
        create(client, "watched")
        wait_until(lambda: terminal.cells("watched")[1:2] == ["0"])
        assert terminal.text.startswith("\x1b[?1049h")
        assert "every 0.1 s, q ends" in terminal.lines[0]
        assert termios.tcgetattr(terminal._slave) != terminal.attributes

        append(client, "watched", b"x" * 10)
        wait_until(lambda: terminal.cells("watched")[1:2] == ["1"])

        def rate() -> float:
            append(client, "watched", b"x" * 10)
            return float(terminal.cells("watched")[2].replace("-", "0"))

        wait_until(lambda: rate() > 0)
        terminal.type("q")
        assert terminal.wait() == 0
        wait_until(terminal.is_restored)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_restores_the_terminal(
    broker: BrokerProcess, number: signal.Signals
) -> None:
    with watch(broker) as terminal:
        wait_until(lambda: terminal.frame)
        if number is signal.SIGINT:
            terminal.type("\x03")
        else:
            terminal.process.send_signal(number)

        assert terminal.wait() == 0
        wait_until(terminal.is_restored)
        assert "Traceback" not in terminal.text


def test_while_it_is_suspended_the_terminal_is_restored(broker: BrokerProcess) -> None:
    # Only a shell's child can be suspended: there is somebody to go back to.
    with Terminal("bash", "--norc", "-i", PS1="ready> ") as terminal:
        wait_until(lambda: terminal.text.endswith("ready> "))
        words = [str(PENSTOCK), "status", "--root", str(broker.root), *WATCH]
        terminal.type(shlex.join(words) + "\n")
        wait_until(lambda: terminal.frame)

        terminal.type("\x1a")
        wait_until(lambda: terminal.text.endswith("ready> "))
        assert terminal.text.count("\x1b[?1049l") == 1
        assert "Stopped" in terminal.text.rpartition("\x1b[?1049l")[2]

        terminal.type("fg\n")
        wait_until(lambda: terminal.text.count("\x1b[?1049h") == 2)
        wait_until(lambda: "\x1b[J" in terminal.text.rpartition("\x1b[?1049h")[2])
        terminal.type("q")
        wait_until(lambda: terminal.text.endswith("ready> "))
        assert terminal.text.count("\x1b[?1049l") == 2


def test_it_fits_the_window_also_after_that_has_changed(broker: BrokerProcess) -> None:
    with watch(broker, rows=40, columns=100) as terminal:
        wait_until(lambda: terminal.cells("empty"))
        assert max(map(len, terminal.lines)) > 60

        terminal.resize(8, 40)
        terminal.process.send_signal(signal.SIGWINCH)
        wait_until(lambda: len(terminal.lines) <= 8 and max(map(len, terminal.lines)) < 40)
        assert any(line.startswith("and ") for line in terminal.lines)


def test_it_goes_on_when_the_broker_comes_back(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "root")
    with broker:
        with broker.connect() as client:
            create(client, "kept")
        with watch(broker) as terminal:
            wait_until(lambda: terminal.cells("kept"))
            broker.kill()
            wait_until(lambda: terminal.lines[0].startswith("not reachable, trying again: "))
            assert terminal.cells("kept")

            broker.start()
            wait_until(lambda: terminal.lines[0].startswith("penstock 0."))
            terminal.type("q")
            assert terminal.wait() == 0


@pytest.mark.parametrize(("variables", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_used_unless_they_are_not_wanted(
    broker: BrokerProcess, variables: dict[str, str], is_coloured: bool
) -> None:
    with watch(broker, **variables) as terminal:
        wait_until(lambda: terminal.frame)
        assert ("\x1b[33m" in terminal.text) is is_coloured
        terminal.type("q")
        assert terminal.wait() == 0


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_without_a_screen_it_prints_all_of_it_each_time(
    broker: BrokerProcess, words: list[str]
) -> None:
    process = subprocess.Popen(
        [str(PENSTOCK), "status", "--root", str(broker.root), *WATCH, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env=clean_environment(PYTHONUNBUFFERED="1"),
    )
    assert process.stdout is not None
    lines = drain(process.stdout)
    marks: list[str] = []
    while len(marks) < 3:
        line = lines.get(timeout=PATIENCE_S)
        assert "\x1b" not in line
        if words:
            marks.append(str(json.loads(line)["uptimeMillis"]))
        elif line.startswith("penstock 0."):
            marks.append(line)
    process.send_signal(signal.SIGINT)

    assert process.wait(PATIENCE_S) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert words == [] or len(set(marks)) == 3


def test_a_program_is_told_when_nobody_answers(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "root")
    with broker:
        process = subprocess.Popen(
            [str(PENSTOCK), "status", "--port", str(broker.port), *WATCH, "--json"],
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env=clean_environment(AWS_CONTAINER_AUTHORIZATION_TOKEN=broker.token),
        )
        assert process.stdout is not None
        lines = drain(process.stdout)
        assert "streams" in json.loads(lines.get(timeout=PATIENCE_S))
        broker.kill()
        wait_until(lambda: "errorMessage" in json.loads(lines.get(timeout=PATIENCE_S)))
        process.terminate()
        process.wait(PATIENCE_S)
        broker.start()


def test_a_dumb_terminal_is_no_screen(broker: BrokerProcess) -> None:
    with watch(broker, TERM="dumb") as terminal:
        wait_until(lambda: terminal.text.count("penstock 0.") >= 2)
        assert "\x1b[?" not in terminal.text
        terminal.type("\x03")
        assert terminal.wait() == 0


def test_appends_and_reads_are_counted(broker: BrokerProcess) -> None:
    with broker.connect() as client:
        before = json.loads(status(broker, "--json").output)
        client.call(Operation.ReadMessages, streamName="sensor 1")
        after = json.loads(status(broker, "--json").output)

    assert after["messagesRead"] == before["messagesRead"] + 1
    assert after["bytesRead"] == before["bytesRead"] + 100
