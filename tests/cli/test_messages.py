"""`penstock append`, `read` and `tail` on a real broker, in pipes where that makes a difference."""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import json
import os
import pty
import queue
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import pytest

from penstock.cli import messages
from penstock.cli.messages import (
    Batch,
    Display,
    Printer,
    Progress,
    Source,
    Tally,
    follow_stream,
    make_progress,
)
from penstock.cli.payload import Format
from penstock.client.blocking import StreamManagerClient
from penstock.errors import ResourceNotFoundException
from penstock.wire.operations import Operation
from tests.support import (
    PATIENCE_S,
    PENSTOCK,
    BrokerProcess,
    append,
    clean_environment,
    create,
    drain,
    read,
    running,
    wait_until,
)

from .command import Finished, penstock

INTERRUPTED = 130
_names = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "root") as started:
        yield started


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One that a test may kill."""
    with BrokerProcess(tmp_path / "root") as started:
        yield started


@pytest.fixture
def stream(broker: BrokerProcess) -> str:
    return make_stream(broker)


def make_stream(broker: BrokerProcess, **definition: Any) -> str:
    with broker.connect() as client:
        return create(client, f"stream-{next(_names)}", **definition)


def stored(broker: BrokerProcess, stream: str) -> list[bytes]:
    """The payloads that the stream holds."""
    with broker.connect() as client:
        info = client.call(Operation.DescribeMessageStream, name=stream)["messageStreamInfo"]
        count = info["storageStatus"]["newestSequenceNumber"] + 1
        found: list[bytes] = []
        while len(found) < count:
            options = {"desiredStartSequenceNumber": len(found), "maxMessageCount": count}
            found += [message["payload"] for message in read(client, stream, **options)]
        return found


def fill(broker: BrokerProcess, stream: str, *payloads: bytes) -> None:
    with broker.connect() as client:
        client.append_many(stream, payloads)


def run(broker: BrokerProcess, *words: str, token: str = "") -> Finished:
    command, *rest = words
    return penstock(
        command, "--root", str(broker.root), *rest, AWS_CONTAINER_AUTHORIZATION_TOKEN=token
    )


def command_line(broker: BrokerProcess, *words: str | bytes) -> list[str | bytes]:
    command, *rest = words
    return [str(PENSTOCK), command, "--root", str(broker.root), *rest]


def run_with_input(
    broker: BrokerProcess, data: bytes, *words: str | bytes
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command_line(broker, *words),
        input=data,
        env=clean_environment(),
        cwd="/",
        check=False,
        capture_output=True,
        timeout=PATIENCE_S,
    )


class Started:
    """The command while it runs, between two pipes."""

    def __init__(self, broker: BrokerProcess, *words: str) -> None:
        self.process = subprocess.Popen(
            command_line(broker, *words),
            env=clean_environment(),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A group of its own, whose Ctrl-C is not the tests'.
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.lines = drain(self.process.stdout)
        self._errors = drain(self.process.stderr)

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def next_line(self) -> str:
        line = self.lines.get(timeout=PATIENCE_S)
        assert line, f"it has ended: {_rest_of(self._errors)}"
        return line.rstrip("\n")

    def interrupt(self) -> None:
        """What a terminal does to all that runs in it when Ctrl-C is pressed."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> Finished:
        """Ends its input, waits, and gives what was not taken yet."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        code = self.process.wait(PATIENCE_S)
        return Finished(code, _rest_of(self.lines), _rest_of(self._errors))

    def wait_until_it_has_sent(self) -> None:
        """Until it has taken all its input, and sleeps: then it waits for an answer."""
        assert self.process.stdin is not None
        descriptor = self.process.stdin.fileno()
        state = Path(f"/proc/{self.process.pid}/stat")

        def has_sent() -> bool:
            (left,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"1234"))
            return left == 0 and state.read_text().rpartition(")")[2].split()[0] == "S"

        wait_until(has_sent)


def _rest_of(lines: queue.SimpleQueue[str]) -> str:
    text = ""
    while line := lines.get(timeout=PATIENCE_S):
        text += line
    return text


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    """Starts commands, and ends those that a failed test leaves behind."""
    started: list[Started] = []
    # Whoever runs the tests in the background has made all that they start deaf to Ctrl-C.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)

    def begin(broker: BrokerProcess, *words: str) -> Started:
        started.append(Started(broker, *words))
        return started[-1]

    yield begin
    signal.signal(signal.SIGINT, handler)
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
            command.process.wait()


class Terminal:
    """A terminal and what was written to it."""

    def __init__(self) -> None:
        self._side, inner = pty.openpty()
        self.file: TextIO = os.fdopen(inner, "w")
        self._shown = b""
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        # Linux says with an error that nobody has the other side open any more.
        with contextlib.suppress(OSError):
            while data := os.read(self._side, 65_536):
                self._shown += data

    @property
    def shown(self) -> str:
        return self._shown.decode()

    def type(self, text: str) -> None:
        os.write(self._side, text.encode())

    def close(self) -> str:
        """All that was shown in the end."""
        if not self.file.closed:
            self.file.close()
            self._thread.join(PATIENCE_S)
            os.close(self._side)
        return self.shown


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal()
    yield opened
    opened.close()


# Append: arguments


def test_one_message_is_answered_with_its_number(broker: BrokerProcess, stream: str) -> None:
    assert run(broker, "append", stream, "first") == Finished(0, "0\n", "")
    assert run(broker, "append", stream, "sécond") == Finished(0, "1\n", "")
    assert stored(broker, stream) == [b"first", "sécond".encode()]


def test_many_messages_are_answered_with_their_count_and_numbers(
    broker: BrokerProcess, stream: str
) -> None:
    fill(broker, stream, b"before")

    finished = run(broker, "append", stream, "--", "a", "-1", "b")

    assert finished == Finished(0, f"appended 3 messages to {stream}: 1..3\n", "")
    assert stored(broker, stream)[1:] == [b"a", b"-1", b"b"]


@pytest.mark.parametrize("words", [["--json"], ["--json", "--quiet"]])
def test_programs_get_count_and_numbers(
    broker: BrokerProcess, stream: str, words: list[str]
) -> None:
    finished = run(broker, "append", stream, "a", "b", *words)

    assert json.loads(finished.output) == {
        "stream": stream,
        "count": 2,
        "firstSequenceNumber": 0,
        "lastSequenceNumber": 1,
    }


def test_quiet_is_silent(broker: BrokerProcess, stream: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a\n\nb\n")

    finished = run(broker, "append", stream, "--quiet", "--file", str(tmp_path / "lines"))

    assert finished == Finished(0, "", "")
    assert stored(broker, stream) == [b"a", b"b"]


def test_arguments_are_taken_as_they_are(broker: BrokerProcess, stream: str) -> None:
    assert run_with_input(broker, b"", "append", stream, b"\xff\x01 ").returncode == 0
    assert stored(broker, stream) == [b"\xff\x01 "]


def test_arguments_may_be_hex_or_base64(broker: BrokerProcess, stream: str) -> None:
    run(broker, "append", stream, "--encoding", "hex", "00ff", "de ad")
    run(broker, "append", stream, "--encoding", "base64", "AP8=")

    assert stored(broker, stream) == [b"\x00\xff", b"\xde\xad", b"\x00\xff"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--encoding", "hex", "00", "0"], "message 2 is not hex (odd-length string)"),
        (["--encoding", "base64", "a"], "message 1 is not base64"),
        (["a", ""], "message 2 is empty: a message has at least one byte"),
        (["a", "--blob"], "choose one"),
        (["a", "--file", "/dev/null"], "choose one"),
        (["--file", "/nowhere"], "'/nowhere' does not exist"),
        (["--file", "/"], "'/' is a directory"),
        (["--encoding", "rot13", "a"], "'text', 'hex', 'base64'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_appended(
    broker: BrokerProcess, stream: str, words: list[str], message: str
) -> None:
    finished = run(broker, "append", stream, *words)

    assert finished.code == 2
    assert message in finished.error
    assert "Traceback" not in finished.error
    assert stored(broker, stream) == []


# Append: lines and blobs


def test_each_line_of_standard_input_is_a_message(broker: BrokerProcess, stream: str) -> None:
    lines = b"one\n\n \r\n\xff\xfe\n\n\nno end of line"

    finished = run_with_input(broker, lines, "append", stream)

    assert finished.stdout.decode() == f"appended 4 messages to {stream}: 0..3\n"
    assert finished.stderr == b"penstock: 3 empty lines were skipped\n"
    assert finished.returncode == 0
    assert stored(broker, stream) == [b"one", b" \r", b"\xff\xfe", b"no end of line"]


def test_no_input_is_no_messages(broker: BrokerProcess, stream: str) -> None:
    finished = run_with_input(broker, b"", "append", stream)
    told = run_with_input(broker, b"\n", "append", stream, "--json")

    assert (finished.returncode, told.returncode) == (0, 0)
    assert finished.stdout.decode() == f"appended 0 messages to {stream}\n"
    assert told.stderr == b"penstock: 1 empty line was skipped\n"
    assert json.loads(told.stdout) == {
        "stream": stream,
        "count": 0,
        "firstSequenceNumber": None,
        "lastSequenceNumber": None,
    }


def test_lines_of_any_length_come_through(
    broker: BrokerProcess, stream: str, tmp_path: Path
) -> None:
    source = random.Random(7)
    lengths = [1, 2_500_000, 3, *(source.randrange(1, 3000) for _ in range(3000)), 1_048_577, 5]
    lines = [source.randbytes(length).replace(b"\n", b" ") for length in lengths]
    many = [b"%d" % number for number in range(12_345)]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    (tmp_path / "many").write_bytes(b"\n".join(many) + b"\n")

    finished = run(
        broker, "append", stream, "--file", str(tmp_path / "lines"), "--file", f"{tmp_path}/many"
    )

    assert finished.error == ""
    assert stored(broker, stream) == lines + many
    last = len(lines) + len(many) - 1
    assert finished.output == f"appended {last + 1:,} messages to {stream}: 0..{last}\n"


def test_a_blob_is_one_message(broker: BrokerProcess, stream: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"file\na\n")
    (tmp_path / "b").write_bytes(b"ff\n00\n")

    run_with_input(broker, b"in\n\nput", "append", stream, "--blob")
    run_with_input(
        broker, b"between", "append", stream, "--blob", "--file", f"{tmp_path}/a", "--file", "-"
    )
    run(broker, "append", stream, "--blob", "--file", f"{tmp_path}/b", "--encoding", "hex")

    assert stored(broker, stream) == [b"in\n\nput", b"file\na\n", b"between", b"\xff\x00"]


def test_an_empty_blob_is_refused(broker: BrokerProcess, stream: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "empty").touch()

    finished = run(
        broker, "append", stream, "--blob", "--file", f"{tmp_path}/a", "--file", f"{tmp_path}/empty"
    )

    assert finished.code == 1
    assert finished.error_lines == [
        f"penstock: {tmp_path}/empty is empty: a message has at least one byte; "
        "1 message was appended before"
    ]
    assert stored(broker, stream) == [b"a"]


def test_a_line_that_never_ends_is_refused_before_it_fills_the_memory(
    broker: BrokerProcess, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_FRAME_BYTES", 10_000_000)

    finished = run(broker, "append", stream, "--file", "/dev/zero")

    assert finished.code == 1
    assert finished.error_lines == [
        "penstock: a line of /dev/zero has more than 10,000,000 bytes: no message may; "
        "0 messages were appended before"
    ]
    assert stored(broker, stream) == []


@pytest.mark.parametrize(
    ("encoding", "lines"),
    [("hex", b"00 ff\r\n \r\n0a"), ("base64", b"AP8=\r\n \r\nCg==")],
)
def test_lines_may_be_encoded(
    broker: BrokerProcess, stream: str, encoding: str, lines: bytes
) -> None:
    finished = run_with_input(broker, lines, "append", stream, "--encoding", encoding)

    assert finished.stderr == b"penstock: 1 empty line was skipped\n"
    assert stored(broker, stream) == [b"\x00\xff", b"\n"]


def test_a_bad_line_is_told_with_its_number_and_what_was_appended_before(
    broker: BrokerProcess, stream: str, tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"00\n" * 5002 + b"xx\n" + b"00\n" * 5000)

    finished = run(broker, "append", stream, "--encoding", "hex", "--file", str(path))

    assert finished.code == 1
    assert finished.output == ""
    assert finished.error_lines == [
        f"penstock: {path}, line 5,003: not hex (non-hexadecimal digit found); "
        "5,000 messages were appended before"
    ]
    assert stored(broker, stream) == [b"\x00"] * 5000


def test_nothing_is_appended_of_a_batch_with_a_bad_line(broker: BrokerProcess, stream: str) -> None:
    finished = run_with_input(broker, b"AA==\n\nA\n", "append", stream, "--encoding", "base64")

    assert finished.returncode == 1
    assert b"standard input, line 3: not base64 (" in finished.stderr
    assert b"; 0 messages were appended before\n" in finished.stderr
    assert stored(broker, stream) == []


def test_a_line_is_appended_while_the_pipe_stays_open(
    broker: BrokerProcess, stream: str, start: Callable[..., Started]
) -> None:
    command = start(broker, "append", stream)

    command.say("first\nsec")
    wait_until(lambda: stored(broker, stream) == [b"first"])
    command.say("ond\n")
    wait_until(lambda: stored(broker, stream) == [b"first", b"second"])
    command.say("third")

    assert command.end() == Finished(0, f"appended 3 messages to {stream}: 0..2\n", "")
    assert stored(broker, stream) == [b"first", b"second", b"third"]


# Append: what goes wrong


def test_an_append_to_a_stream_that_gets_full_says_how_far_it_came(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    stream = make_stream(broker, strategyOnFull=0, maxSize=65_536, streamSegmentSize=16_384)
    path = tmp_path / "lines"
    path.write_bytes(b"\n123456789" * 20_000)

    finished = run(broker, "append", stream, "--file", str(path))

    appended = len(stored(broker, stream))
    assert 0 < appended <= 65_536 / 9
    assert finished.code == 1
    assert finished.output == ""
    (line,) = finished.error_lines
    assert line.startswith("penstock: ")
    assert line.endswith(f"; {appended:,} messages were appended before")


@pytest.mark.parametrize(
    "words", [["append", "no-such", "x"], ["read", "no-such"], ["tail", "no-such"]]
)
def test_a_stream_that_is_missing_is_told(broker: BrokerProcess, words: list[str]) -> None:
    finished = run(broker, *words)

    assert finished.code == 5
    assert finished.output == ""
    (line,) = finished.error_lines
    assert line.startswith("penstock: ")
    assert "'no-such'" in line


@pytest.mark.parametrize("words", [["append", "s", "x"], ["read", "s"], ["tail", "-f", "s"]])
def test_a_broker_that_is_missing_is_told(tmp_path: Path, words: list[str]) -> None:
    command, *rest = words

    finished = penstock(command, "--host", "127.0.0.1", "--port", "1", *rest)

    assert finished.code == 3
    assert len(finished.error_lines) == 1
    assert "127.0.0.1:1" in finished.error


def test_a_role_that_may_only_read_does_not_append(broker: BrokerProcess, stream: str) -> None:
    token = new_token(broker, "consumer")

    finished = run(broker, "append", stream, "x", token=token)

    assert finished.code == 4
    assert len(finished.error_lines) == 1
    assert run(broker, "tail", stream, token=token).code == 0


def new_token(broker: BrokerProcess, role: str) -> str:
    name = f"{role}-{next(_names)}"
    made = penstock("tokens", "create", name, "--role", role, "--root", str(broker.root))
    assert made.code == 0, made.error
    return made.output.strip()


def test_a_stream_is_created_if_there_is_none(broker: BrokerProcess) -> None:
    name = f"created-{next(_names)}"

    assert run(broker, "append", name, "--create", "a") == Finished(0, "0\n", "")
    assert run(broker, "append", name, "--create", "b") == Finished(0, "1\n", "")

    with broker.connect() as client:
        info = client.call(Operation.DescribeMessageStream, name=name)["messageStreamInfo"]
    assert info["definition"]["strategyOnFull"] == 1


def test_who_may_append_need_not_be_allowed_to_create(broker: BrokerProcess, stream: str) -> None:
    token = new_token(broker, "producer")

    assert run(broker, "append", stream, "--create", "a", token=token) == Finished(0, "0\n", "")
    assert run(broker, "append", "never-created", "--create", "a", token=token).code == 4


def test_a_name_that_no_stream_may_have_is_told(broker: BrokerProcess) -> None:
    for words in (["append", "a/b", "x"], ["append", "a/b", "x", "--create"], ["read", "a/b"]):
        finished = run(broker, *words)
        assert finished.code == 1
        assert len(finished.error_lines) == 1
        assert "a/b" in finished.error


def test_an_interrupt_says_what_was_appended(
    broker: BrokerProcess, stream: str, start: Callable[..., Started]
) -> None:
    command = start(broker, "append", stream)
    command.say("one\ntwo\nthree")
    wait_until(lambda: stored(broker, stream) == [b"one", b"two"])

    command.interrupt()

    assert command.process.wait(PATIENCE_S) == INTERRUPTED
    assert command.end().error_lines == ["penstock: interrupted; 2 messages were appended before"]


def test_a_restart_between_two_lines_is_not_noticed(
    own_broker: BrokerProcess, start: Callable[..., Started]
) -> None:
    stream = make_stream(own_broker)
    command = start(own_broker, "append", stream)
    command.say("before\n")
    wait_until(lambda: stored(own_broker, stream) == [b"before"])

    own_broker.kill()
    own_broker.start()
    command.say("after\n")

    assert command.end() == Finished(0, f"appended 2 messages to {stream}: 0..1\n", "")
    assert stored(own_broker, stream) == [b"before", b"after"]


def lose_an_answer(
    broker: BrokerProcess, start: Callable[..., Started], *flags: str
) -> tuple[str, Started]:
    """A command whose second message was sent, and whose broker ended without answering it."""
    stream = make_stream(broker)
    command = start(broker, "append", stream, *flags)
    command.say("first\n")
    wait_until(lambda: stored(broker, stream) == [b"first"])
    assert broker.process is not None
    broker.process.send_signal(signal.SIGSTOP)
    command.say("second\n")
    command.wait_until_it_has_sent()
    broker.kill()
    return stream, command


def test_a_lost_answer_is_told_with_what_may_have_been_appended(
    own_broker: BrokerProcess, start: Callable[..., Started]
) -> None:
    _, command = lose_an_answer(own_broker, start)

    finished = command.end()

    assert finished.code == 3
    (line,) = finished.error_lines
    assert line.endswith("; 1 message was appended before, and up to 1 more may have been")


def test_with_retry_a_lost_answer_is_asked_for_again(
    own_broker: BrokerProcess, start: Callable[..., Started]
) -> None:
    stream, command = lose_an_answer(own_broker, start, "--retry")

    own_broker.start()

    finished = command.end()
    assert finished.code == 0
    assert set(stored(own_broker, stream)) == {b"first", b"second"}


@pytest.fixture
def impatient_client(own_broker: BrokerProcess) -> Iterator[StreamManagerClient]:
    """One that gives up soon: the command's own patience would be too long for a test."""
    with StreamManagerClient(root=own_broker.root, reconnect_timeout=0.1) as client:
        yield client


def test_a_broker_that_does_not_come_back_is_told_with_what_was_appended(
    own_broker: BrokerProcess, impatient_client: StreamManagerClient
) -> None:
    tally = Tally(make_stream(own_broker))
    tally.append(impatient_client, Batch([b"first"]), retry=False)
    own_broker.kill()
    # Else it is sent into the void, and may have been appended.
    wait_until(lambda: not impatient_client.connected)

    with pytest.raises(ConnectionError, match=r"; 1 message was appended before$"):
        tally.append(impatient_client, Batch([b"second", b"third"]), retry=False)


def test_what_was_to_be_sent_again_may_have_been_appended(
    own_broker: BrokerProcess, impatient_client: StreamManagerClient
) -> None:
    tally = Tally(make_stream(own_broker))
    tally.append(impatient_client, Batch([b"first"]), retry=True)
    assert own_broker.process is not None
    own_broker.process.send_signal(signal.SIGSTOP)

    def append_in_vain() -> None:
        with pytest.raises(ConnectionError, match=r"before, and up to 2 more may have been$"):
            tally.append(impatient_client, Batch([b"second", b"third"]), retry=True)

    with running(append_in_vain):
        wait_until(lambda: impatient_client._connection._pending)
        own_broker.kill()


# Progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_long_input_of_known_size_has_a_bar(terminal: Terminal) -> None:
    clock = Clock()
    with Progress(1000, terminal.file, clock) as progress:
        progress.update(Batch([b"x"] * 10, 200))
        clock.now = 2.0
        progress.update(Batch([b"x"] * 10, 300))
        wait_until(lambda: " 50%" in terminal.shown)
        progress.update(Batch([b"x"] * 10, 500))
        wait_until(lambda: "100%" in terminal.shown)

    shown = terminal.close()
    assert " 20%" not in shown
    assert shown.endswith("\n")


def test_a_long_input_of_unknown_size_has_a_count(terminal: Terminal) -> None:
    clock = Clock()
    with Progress(None, terminal.file, clock) as progress:
        progress.update(Batch([b"x"] * 1000, 2000))
        clock.now = 2.0
        progress.update(Batch([b"x"] * 234, 468))

    assert terminal.close() == "\r1,234 messages\r\n"


def test_a_short_input_shows_no_progress(terminal: Terminal) -> None:
    with Progress(10, terminal.file, Clock()) as progress:
        progress.update(Batch([b"x"], 10))

    assert terminal.close() == ""


def test_progress_is_for_terminals_and_for_who_wants_it(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lines").write_bytes(b"12345")
    file = Source(str(tmp_path / "lines"))

    with monkeypatch.context() as patch, os.fdopen(os.dup(terminal.file.fileno())) as typed:
        patch.setattr(sys, "stdin", typed)
        patch.setattr(sys, "stderr", terminal.file)
        assert make_progress([file], is_wanted=True).file is terminal.file
        assert make_progress([file], is_wanted=False).file is None
        assert make_progress([file, Source()], is_wanted=True).file is None
        assert make_progress([], is_wanted=True).file is None
        patch.setattr(sys, "stderr", io.StringIO())
        assert make_progress([file], is_wanted=True).file is None


def test_the_size_of_a_file_is_known_and_of_a_pipe_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"12345")
    assert Source(str(path)).size == 5
    with path.open("rb", buffering=0) as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert Source().size == 5
        file.read(2)
        assert Source().size == 3
    os.mkfifo(tmp_path / "pipe")
    assert Source(str(tmp_path / "pipe")).size is None


def test_who_types_is_told_how_to_end(
    broker: BrokerProcess, stream: str, terminal: Terminal
) -> None:
    process = subprocess.Popen(
        command_line(broker, "append", stream),
        env=clean_environment(),
        stdin=terminal.file,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    terminal.type("one\ntwo\n")
    wait_until(lambda: stored(broker, stream) == [b"one", b"two"])
    terminal.type("\x04")

    output, error = process.communicate(timeout=PATIENCE_S)
    assert error == "penstock: type messages, each on a line; Ctrl-D ends\n"
    assert output == f"appended 2 messages to {stream}: 0..1\n"


def test_a_count_is_shown_beside_a_long_pipe(
    broker: BrokerProcess, stream: str, terminal: Terminal
) -> None:
    process = subprocess.Popen(
        command_line(broker, "append", stream),
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=terminal.file,
        text=True,
    )
    assert process.stdin is not None

    def has_count() -> bool:
        assert process.stdin is not None
        process.stdin.write("line\n")
        process.stdin.flush()
        return " messages" in terminal.shown

    wait_until(has_count)
    output, _ = process.communicate(timeout=PATIENCE_S)

    count = len(stored(broker, stream))
    assert output == f"appended {count:,} messages to {stream}: 0..{count - 1}\n"
    assert terminal.close().endswith(f"\r{count:,} messages\r\n")


# Read


def numbers(finished: Finished) -> list[int]:
    assert finished.code == 0, finished.error
    return [int(line.split()[0]) for line in finished.output.splitlines()]


def test_a_message_is_a_line_with_its_number_local_time_and_payload(
    broker: BrokerProcess, stream: str
) -> None:
    fill(broker, stream, b"plain text", b"two\nlines", b"\xff\x00", b"\x1b[31m")
    with broker.connect() as client:
        time = read(client, stream)[0]["ingestTime"]

    lines = run(broker, "read", stream).output.splitlines()

    found = [re.fullmatch(r" +(\d+)  (\S+)  (.*)", line) for line in lines]
    assert [match and (match[1], match[3]) for match in found] == [
        ("0", "plain text"),
        ("1", r"two\nlines"),
        ("2", "0xff00"),
        ("3", "0x1b5b33316d"),
    ]
    assert found[0] is not None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", found[0][2])
    assert round(datetime.fromisoformat(found[0][2]).timestamp() * 1000) == time


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], range(20)),
        (["--start", "17"], range(17, 20)),
        (["--start", "-3"], range(17, 20)),
        (["--start", "-100"], range(20)),
        (["--start", "20"], range(0)),
        (["--end", "2"], range(2)),
        (["--start", "5", "--end", "100", "--limit", "3"], range(5, 8)),
        (["--start", "5", "--end", "7", "-n", "3"], range(5, 7)),
        (["-n", "0"], range(0)),
    ],
)
def test_what_is_wanted_is_read(
    broker: BrokerProcess, twenty: str, words: list[str], expected: range
) -> None:
    assert numbers(run(broker, "read", twenty, *words)) == list(expected)


@pytest.fixture(scope="module")
def twenty(broker: BrokerProcess) -> str:
    """A stream with twenty messages."""
    stream = make_stream(broker)
    fill(broker, stream, *(b"message %d" % number for number in range(20)))
    return stream


def test_what_was_dropped_is_not_read(broker: BrokerProcess) -> None:
    stream = make_stream(broker, maxSize=2048, streamSegmentSize=1024)
    with broker.connect() as client:
        for _ in range(10):
            append(client, stream, bytes(500))

    read_back = numbers(run(broker, "read", stream))

    assert 0 < len(read_back) < 10
    assert read_back == list(range(read_back[0], 10))


def test_a_large_stream_is_read_whole_and_in_order(broker: BrokerProcess, stream: str) -> None:
    payloads = [b"%d" % number for number in range(30_000)] + [bytes(300_000)]
    fill(broker, stream, *payloads)

    assert numbers(run(broker, "read", stream)) == list(range(30_001))
    finished = run_with_input(broker, b"", "read", stream, "--format", "raw")
    assert finished.stdout == b"".join(payloads)


PAYLOADS = [b'{"a": [1,\n2]}', "gr\u00fcn".encode(), b"\xff\x00", b"tab\tbell\x07"]


@pytest.fixture(scope="module")
def mixed(broker: BrokerProcess) -> str:
    """A stream with JSON, text, bytes, and text with control characters."""
    stream = make_stream(broker)
    fill(broker, stream, *PAYLOADS)
    return stream


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("auto", [PAYLOADS[0], PAYLOADS[1], b"0xff00", b"0x" + PAYLOADS[3].hex().encode()]),
        ("text", PAYLOADS),
        ("json", [b'{"a":[1,2]}', PAYLOADS[1], b"0xff00", b"0x" + PAYLOADS[3].hex().encode()]),
        ("hex", [payload.hex().encode() for payload in PAYLOADS]),
        ("base64", [b"eyJhIjogWzEsCjJdfQ==", b"Z3LDvG4=", b"/wA=", b"dGFiCWJlbGwH"]),
    ],
)
def test_payloads_alone_go_into_a_pipe_as_they_are(
    broker: BrokerProcess, mixed: str, form: str, expected: list[bytes]
) -> None:
    finished = run_with_input(broker, b"", "read", mixed, "--payload-only", "--format", form)

    assert finished.stdout == b"".join(payload + b"\n" for payload in expected)
    assert finished.stderr == b""


def test_raw_has_nothing_between_messages(broker: BrokerProcess, mixed: str) -> None:
    for words in (["--format", "raw"], ["--format", "raw", "--payload-only"]):
        assert run_with_input(broker, b"", "read", mixed, *words).stdout == b"".join(PAYLOADS)
    last = run_with_input(broker, b"", "tail", mixed, "--format", "raw", "-n", "1")
    assert last.stdout == PAYLOADS[-1]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("text", [r'{"a": [1,\n2]}', "gr\u00fcn", r"\xff\x00", r"tab\tbell\x07"]),
        ("json", ['{"a":[1,2]}', "gr\u00fcn", "0xff00", "0x" + PAYLOADS[3].hex()]),
        ("hex", [payload.hex() for payload in PAYLOADS]),
    ],
)
def test_a_message_is_one_line_in_every_format(
    broker: BrokerProcess, mixed: str, form: str, expected: list[str]
) -> None:
    finished = run(broker, "read", mixed, "--format", form)

    assert [line.split(maxsplit=2)[2] for line in finished.output.splitlines()] == expected


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (
            "auto",
            [
                {"payload": PAYLOADS[0].decode()},
                {"payload": "gr\u00fcn"},
                {"payload": "/wA=", "encoding": "base64"},
                {"payload": "tab\tbell\x07"},
            ],
        ),
        (
            "json",
            [
                {"payload": {"a": [1, 2]}, "encoding": "json"},
                {"payload": "gr\u00fcn"},
                {"payload": "/wA=", "encoding": "base64"},
                {"payload": "tab\tbell\x07"},
            ],
        ),
        ("hex", [{"payload": payload.hex(), "encoding": "hex"} for payload in PAYLOADS]),
    ],
)
def test_programs_get_an_object_a_line(
    broker: BrokerProcess, mixed: str, form: str, expected: list[dict[str, object]]
) -> None:
    with broker.connect() as client:
        time = read(client, mixed)[0]["ingestTime"]

    for command in ("read", "tail"):
        finished = run(broker, command, mixed, "--json", "--format", form)
        assert [json.loads(line) for line in finished.output.splitlines()] == [
            {"streamName": mixed, "sequenceNumber": number, "ingestTime": time} | fields
            for number, fields in enumerate(expected)
        ]


@pytest.mark.parametrize("words", [["--payload-only"], ["--format", "raw"]])
@pytest.mark.parametrize("command", ["read", "tail"])
def test_json_goes_with_no_other_shape(
    broker: BrokerProcess, twenty: str, command: str, words: list[str]
) -> None:
    finished = run(broker, command, twenty, "--json", *words)

    assert finished.code == 2
    assert "exclude each other" in finished.error


@pytest.mark.parametrize("words", [[], ["--payload-only"], ["--json"], ["--format", "text"]])
def test_no_payload_steers_a_terminal(
    broker: BrokerProcess, stream: str, terminal: Terminal, words: list[str]
) -> None:
    fill(broker, stream, b"\x1b[31mred", "\x9b31mred".encode(), b"seen\nagain\r\x08")

    subprocess.run(
        command_line(broker, "read", stream, *words),
        env=clean_environment(),
        stdout=terminal.file,
        check=True,
        timeout=PATIENCE_S,
    )

    shown = terminal.close().replace("\r\n", "\n")
    assert "again" in shown or "616761696e" in shown
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)


def test_who_takes_the_first_line_only_ends_the_command_quietly(
    broker: BrokerProcess, stream: str
) -> None:
    fill(broker, stream, *(b"message %d" % number for number in range(50_000)))
    reader = subprocess.Popen(
        command_line(broker, "read", stream, "--payload-only"),
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    head = shutil.which("head")
    assert head is not None

    first = subprocess.run(
        [head, "-1"], stdin=reader.stdout, capture_output=True, check=True, timeout=PATIENCE_S
    )
    assert reader.stdout is not None
    reader.stdout.close()

    assert first.stdout == b"message 0\n"
    assert reader.wait(PATIENCE_S) in (0, 1)
    assert reader.stderr is not None
    assert reader.stderr.read() == b""


def test_what_came_before_an_error_is_printed() -> None:
    def break_off() -> Iterator[Any]:
        yield from ("a", "b")
        raise TimeoutError

    output = io.BytesIO()
    with pytest.raises(TimeoutError):
        Printer(lambda message: str(message).encode(), output).print(break_off())

    assert output.getvalue() == b"ab"


# Tail


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], range(10, 20)),
        (["-n", "3"], range(17, 20)),
        (["-n", "100"], range(20)),
        (["-n", "0"], range(0)),
        (["--start", "18"], range(18, 20)),
        (["--start", "-2"], range(18, 20)),
        (["--start", "0"], range(20)),
        (["--start", "30"], range(0)),
    ],
)
def test_the_last_messages_are_printed(
    broker: BrokerProcess, twenty: str, words: list[str], expected: range
) -> None:
    assert numbers(run(broker, "tail", twenty, *words)) == list(expected)


def test_a_tail_begins_at_one_place(broker: BrokerProcess, twenty: str) -> None:
    finished = run(broker, "tail", twenty, "-n", "1", "--start", "1")

    assert finished.code == 2
    assert "--limit and --start exclude each other" in finished.error


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["-n", "2"], ["old 1", "old 2"]),
        (["-n", "0"], []),
        (["--start", "1"], ["old 1", "old 2"]),
        ([], ["old 0", "old 1", "old 2"]),
    ],
)
def test_what_comes_is_printed_at_once_until_ctrl_c(
    broker: BrokerProcess,
    stream: str,
    start: Callable[..., Started],
    words: list[str],
    first: list[str],
) -> None:
    fill(broker, stream, b"old 0", b"old 1", b"old 2")
    command = start(broker, "tail", "--follow", "--payload-only", stream, *words)
    if not first:
        # Only once it waits is it known that what comes is new to it.
        wait_until(lambda: waiting_reads(broker, stream) == 1)

    assert [command.next_line() for _ in first] == first
    for number in range(3):
        fill(broker, stream, b"new %d" % number)
        assert command.next_line() == f"new {number}"
    command.interrupt()

    assert command.process.wait(PATIENCE_S) == INTERRUPTED
    assert command.end() == Finished(INTERRUPTED, "", "")


def waiting_reads(broker: BrokerProcess, stream: str) -> int:
    with broker.connect() as client:
        streams = client.call(Operation.Statistics)["statistics"]["streams"]
    return sum(one["waitingReads"] for one in streams if one["name"] == stream)


def test_a_stream_that_is_deleted_ends_its_tail(
    broker: BrokerProcess, stream: str, start: Callable[..., Started]
) -> None:
    command = start(broker, "tail", "-f", stream)
    wait_until(lambda: waiting_reads(broker, stream) == 1)

    with broker.connect() as client:
        client.call(Operation.DeleteMessageStream, name=stream)

    finished = command.end()
    assert finished.code == 5
    assert len(finished.error_lines) == 1


def test_a_tail_survives_a_broker_that_is_killed_and_started_again(
    own_broker: BrokerProcess, start: Callable[..., Started]
) -> None:
    stream = make_stream(own_broker)
    fill(own_broker, stream, b"a", b"b")
    command = start(own_broker, "tail", "-f", "--payload-only", stream)
    assert [command.next_line() for _ in range(2)] == ["a", "b"]

    for number in range(2):
        own_broker.kill()
        own_broker.start()
        fill(own_broker, stream, b"new %d" % number)
        assert command.next_line() == f"new {number}"
    command.interrupt()

    assert command.process.wait(PATIENCE_S) == INTERRUPTED
    assert command.end() == Finished(INTERRUPTED, "", "")


def test_a_tail_goes_on_where_the_client_gives_up(
    own_broker: BrokerProcess,
    impatient_client: StreamManagerClient,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = make_stream(own_broker)
    output = io.BytesIO()
    printer = Printer(Display(Format.TEXT, True, False).renderer(stream, False), output)
    said = ""

    def has_said(text: str) -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return text in said

    def follow_until_it_is_deleted() -> None:
        with pytest.raises(ResourceNotFoundException):
            follow_stream(impatient_client, stream, 0, printer)

    with running(follow_until_it_is_deleted):
        fill(own_broker, stream, b"before")
        wait_until(lambda: output.getvalue() == b"before\n")
        own_broker.kill()
        wait_until(lambda: has_said("trying on, until Ctrl-C\n"))
        own_broker.start()
        fill(own_broker, stream, b"after")
        wait_until(lambda: output.getvalue() == b"before\nafter\n")
        with own_broker.connect() as connection:
            connection.call(Operation.DeleteMessageStream, name=stream)

    assert has_said(f"penstock: connected again to 127.0.0.1:{own_broker.port}\n")
    assert said.count("trying on") == 1
