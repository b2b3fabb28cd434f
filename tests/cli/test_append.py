"""`penstock append` on a broker, with pipes where they matter."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli import progress_bar as progress
from penstock.cli.append import AppendTally
from penstock.cli.message_input import Batch
from penstock.errors import UnansweredException
from penstock.wire.operations import Operation
from tests.client.servers import Relay, client_of
from tests.support import BrokerProcess, running, wait_until

from .command import Finished, penstock
from .messaging import (
    INTERRUPTED,
    BareTerminal,
    Started,
    fill,
    make_stream,
    new_name,
    run,
    run_in_pipes,
    run_with_files,
    stored,
)

# Output


def test_single_append_prints_its_sequence_number(broker: BrokerProcess, stream: str) -> None:
    assert run(broker, "append", stream, "first") == Finished(0, "0\n", "")
    assert run(broker, "append", stream, "sécond") == Finished(0, "1\n", "")
    assert stored(broker, stream) == [b"first", "sécond".encode()]


def test_append_of_many_prints_count_and_sequence_numbers(
    broker: BrokerProcess, stream: str
) -> None:
    fill(broker, stream, b"before")

    finished = run(broker, "append", stream, "--", "a", "-1", "b")

    assert finished == Finished(0, f"appended 3 messages to {stream}: 1..3\n", "")
    assert stored(broker, stream)[1:] == [b"a", b"-1", b"b"]


@pytest.mark.parametrize("words", [["--json"], ["--json", "--quiet"]])
def test_json_has_count_and_sequence_numbers(
    broker: BrokerProcess, stream: str, words: list[str]
) -> None:
    finished = run(broker, "append", stream, "a", "b", *words)

    assert json.loads(finished.output) == {
        "stream": stream,
        "count": 2,
        "firstSequenceNumber": 0,
        "lastSequenceNumber": 1,
    }


def test_empty_input_appends_nothing(broker: BrokerProcess, stream: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"\n")

    finished = run(broker, "append", stream, "--file", "/dev/null")
    as_json = run(broker, "append", stream, "--json", "--file", f"{tmp_path}/lines")

    assert finished == Finished(0, f"appended 0 messages to {stream}\n", "")
    assert (as_json.code, as_json.error) == (0, "penstock: 1 empty line was skipped\n")
    assert json.loads(as_json.output) == {
        "stream": stream,
        "count": 0,
        "firstSequenceNumber": None,
        "lastSequenceNumber": None,
    }


def test_quiet_prints_nothing(broker: BrokerProcess, stream: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a\n\nb\n")

    finished = run(broker, "append", stream, "--quiet", "--file", str(tmp_path / "lines"))

    assert finished == Finished(0, "", "")
    assert stored(broker, stream) == [b"a", b"b"]


# Input


def test_each_line_of_standard_input_is_a_message(broker: BrokerProcess, stream: str) -> None:
    lines = b"one\n\n \r\n\xff\xfe\n\n\nno end of line"

    finished = run_in_pipes(broker, lines, "append", stream)

    assert finished.stdout.decode() == f"appended 4 messages to {stream}: 0..3\n"
    assert finished.stderr == b"penstock: 3 empty lines were skipped\n"
    assert finished.returncode == 0
    assert stored(broker, stream) == [b"one", b" \r", b"\xff\xfe", b"no end of line"]


def test_line_is_appended_while_the_pipe_stays_open(
    broker: BrokerProcess, stream: str, start: Callable[..., Started]
) -> None:
    command = start(broker, "append", stream)

    command.write("first\nsec")
    wait_until(lambda: stored(broker, stream) == [b"first"])
    command.write("ond\n")
    wait_until(lambda: stored(broker, stream) == [b"first", b"second"])
    command.write("third")

    assert command.end() == Finished(0, f"appended 3 messages to {stream}: 0..2\n", "")
    assert stored(broker, stream) == [b"first", b"second", b"third"]


def test_files_and_standard_input_are_appended_in_order(
    broker: BrokerProcess, stream: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"file\na\n")
    (tmp_path / "b").write_bytes(b"file b")
    words = ["append", stream, "--file", f"{tmp_path}/a", "--file", "-", "--file", f"{tmp_path}/b"]

    run_in_pipes(broker, b"be\ntween", *words, "--blob")
    run_in_pipes(broker, b"be\ntween", *words)

    assert stored(broker, stream) == [
        *(b"file\na\n", b"be\ntween", b"file b"),
        *(b"file", b"a", b"be", b"tween", b"file b"),
    ]


def test_large_file_is_appended_whole(broker: BrokerProcess, stream: str, tmp_path: Path) -> None:
    lines = [*(b"%d" % number for number in range(12_345)), bytes(2_500_000), b"last"]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))

    finished = run(broker, "append", stream, "--file", f"{tmp_path}/lines")

    assert finished == Finished(0, f"appended 12,347 messages to {stream}: 0..12346\n", "")
    assert stored(broker, stream) == lines


def test_arguments_lines_and_blobs_are_decoded(
    broker: BrokerProcess, stream: str, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_bytes(b"AP8=\n\nCg==\n")
    (tmp_path / "blob").write_bytes(b"00\nff\n")

    run(broker, "append", stream, "--encoding", "hex", "00ff")
    run(broker, "append", stream, "--encoding", "base64", "--file", f"{tmp_path}/lines")
    run(broker, "append", stream, "--encoding", "hex", "--blob", "--file", f"{tmp_path}/blob")

    assert stored(broker, stream) == [b"\x00\xff", b"\x00\xff", b"\n", b"\x00\xff"]


def test_create_makes_a_missing_stream(broker: BrokerProcess) -> None:
    name = new_name()

    assert run(broker, "append", name, "--create", "a") == Finished(0, "0\n", "")
    assert run(broker, "append", name, "--create", "b") == Finished(0, "1\n", "")

    with broker.connect() as client:
        info = client.call(Operation.DescribeMessageStream, name=name)["messageStreamInfo"]
    assert info["definition"]["strategyOnFull"] == 1


# On a terminal


def test_terminal_input_shows_how_to_end_it(
    broker: BrokerProcess, stream: str, terminal: BareTerminal, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.type("one\ntwo\n\x04")
    with terminal.keyboard() as keyboard:
        run_with_files(broker, "append", stream, stdin=keyboard)

    assert capsys.readouterr() == (
        f"appended 2 messages to {stream}: 0..1\n",
        "penstock: type one message per line; Ctrl-D ends the input\n",
    )
    assert stored(broker, stream) == [b"one", b"two"]


def test_long_pipe_shows_a_message_count(
    broker: BrokerProcess,
    stream: str,
    terminal: BareTerminal,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0.0)
    reading, writing = os.pipe()
    with os.fdopen(reading) as pipe:
        with os.fdopen(writing, "w") as lines:
            lines.write("a\nb\nc\n")
        run_with_files(broker, "append", stream, stdin=pipe, stderr=terminal.file)

    assert terminal.close() == "\r3 messages\r\n"
    assert capsys.readouterr().out == f"appended 3 messages to {stream}: 0..2\n"


# Errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--encoding", "hex", "00", "0"], "message 2 is not hex (odd-length string)"),
        (["a", ""], "message 2 is empty: a message has at least one byte"),
        (["a", "--blob"], "choose one"),
        (["a", "--file", "/dev/null"], "choose one"),
        (["--file", "/nowhere"], "'/nowhere' does not exist"),
        (["--file", "/"], "'/' is a directory"),
        (["--encoding", "rot13", "a"], "'text', 'hex', 'base64'"),
    ],
)
def test_invalid_usage_appends_nothing(
    broker: BrokerProcess, stream: str, words: list[str], message: str
) -> None:
    finished = run(broker, "append", stream, *words)

    assert finished.code == 2
    assert message in finished.error
    assert "Traceback" not in finished.error
    assert stored(broker, stream) == []


def test_malformed_line_reports_line_number_and_appended_count(
    broker: BrokerProcess, stream: str, tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"00\n" * 5002 + b"xx\n" + b"00\n" * 5000)

    finished = run(broker, "append", stream, "--encoding", "hex", "--file", str(path))

    assert finished.code == 1
    assert finished.output == ""
    assert finished.error_lines == [
        f"penstock: {path}, line 5,003: not hex (non-hexadecimal digit found); "
        "5,000 messages were appended"
    ]
    assert stored(broker, stream) == [b"\x00"] * 5000


def test_empty_blob_reports_appended_count(
    broker: BrokerProcess, stream: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "empty").touch()

    finished = run(
        broker, "append", stream, "--blob", "--file", f"{tmp_path}/a", "--file", f"{tmp_path}/empty"
    )

    assert finished.code == 1
    assert finished.error_lines == [
        f"penstock: {tmp_path}/empty is empty: a message has at least one byte; "
        "1 message was appended"
    ]
    assert stored(broker, stream) == [b"a"]


def test_full_stream_reports_appended_count(
    broker: BrokerProcess, plain_server: Relay, tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"\n123456789" * 20_000)
    for server in (broker, plain_server):
        stream = make_stream(broker, strategyOnFull=0, maxSize=65_536, streamSegmentSize=16_384)

        finished = run(server, "append", stream, "--file", str(path))

        appended = len(stored(broker, stream))
        assert 0 < appended <= 65_536 / 9
        assert finished.code == 1
        assert finished.output == ""
        (line,) = finished.error_lines
        assert line.startswith("penstock: ")
        assert line.endswith(f"; {appended:,} messages were appended")


def test_missing_stream_fails(broker: BrokerProcess) -> None:
    finished = run(broker, "append", "no-such", "x")

    assert finished.code == 5
    assert finished.output == ""
    (line,) = finished.error_lines
    assert line.startswith("penstock: ")
    assert "'no-such'" in line


def test_unreachable_broker_fails() -> None:
    finished = penstock("append", "--host", "127.0.0.1", "--port", "1", "s", "x")

    assert finished.code == 3
    assert len(finished.error_lines) == 1
    assert "127.0.0.1:1" in finished.error


@pytest.mark.parametrize("words", [[], ["--create"]])
def test_invalid_stream_name_fails(broker: BrokerProcess, words: list[str]) -> None:
    finished = run(broker, "append", "a/b", "x", *words)

    assert finished.code == 1
    assert len(finished.error_lines) == 1
    assert "a/b" in finished.error


def test_consumer_may_not_append(broker: BrokerProcess, stream: str) -> None:
    finished = run(broker, "append", stream, "x", token=new_token(broker, "consumer"))

    assert finished.code == 4
    assert len(finished.error_lines) == 1


def test_producer_may_use_create_on_existing_streams(broker: BrokerProcess, stream: str) -> None:
    token = new_token(broker, "producer")

    assert run(broker, "append", stream, "--create", "a", token=token) == Finished(0, "0\n", "")
    assert run(broker, "append", "never-created", "--create", "a", token=token).code == 4


def new_token(broker: BrokerProcess, role: str) -> str:
    made = penstock("tokens", "create", role, "--role", role, "--root", str(broker.root))
    assert made.code == 0, made.error
    return made.output.strip()


def test_interrupt_reports_appended_count(
    broker: BrokerProcess, stream: str, start: Callable[..., Started]
) -> None:
    command = start(broker, "append", stream)
    command.write("one\ntwo\n")
    wait_until(lambda: stored(broker, stream) == [b"one", b"two"])
    command.write("three")
    command.wait_until_input_is_read()

    assert command.interrupt() == Finished(
        INTERRUPTED, "", "penstock: interrupted; 2 messages were appended\n"
    )


# An unavailable broker


def test_broker_restart_between_two_lines_is_transparent(
    broker: BrokerProcess, stream: str, start: Callable[..., Started]
) -> None:
    command = start(broker, "append", stream)
    command.write("before\n")
    wait_until(lambda: stored(broker, stream) == [b"before"])

    broker.kill()
    broker.start()
    command.write("after\n")

    assert command.end() == Finished(0, f"appended 2 messages to {stream}: 0..1\n", "")
    assert stored(broker, stream) == [b"before", b"after"]


def lose_an_answer(broker: BrokerProcess, relay: Relay, stream: str, command: Started) -> None:
    """Cuts the connection after the second message is stored and before its answer."""
    command.write("first\n")
    wait_until(lambda: stored(broker, stream) == [b"first"])
    command.write("sec")
    command.wait_until_input_is_read()
    relay.hold()
    command.write("ond\n")
    wait_until(lambda: stored(broker, stream) == [b"first", b"second"])
    relay.cut()
    relay.release()


def test_lost_answer_reports_possibly_appended_count(
    broker: BrokerProcess, relay: Relay, stream: str, start: Callable[..., Started]
) -> None:
    command = start(relay, "append", stream)
    lose_an_answer(broker, relay, stream, command)

    finished = command.end()

    assert finished.code == 3
    (line,) = finished.error_lines
    assert line.endswith("; 1 message was appended, and up to 1 more may have been")


def test_retry_sends_again_after_a_lost_answer(
    broker: BrokerProcess, relay: Relay, stream: str, start: Callable[..., Started]
) -> None:
    command = start(relay, "append", stream, "--retry")
    lose_an_answer(broker, relay, stream, command)

    assert command.end() == Finished(0, f"appended 2 messages to {stream}: 0..2\n", "")
    assert stored(broker, stream) == [b"first", b"second", b"second"]


def test_unavailable_broker_reports_appended_count(broker: BrokerProcess, stream: str) -> None:
    tally = AppendTally(stream)
    with Relay(broker) as relay:
        client = client_of(relay, reconnect_timeout=0)
        tally.append(client, Batch([b"first"]), retry=False)
    # Otherwise the message is sent to a dead connection, and may have been appended.
    wait_until(lambda: not client.connected)

    with client, pytest.raises(ConnectionError, match=r"; 1 message was appended$"):
        tally.append(client, Batch([b"second", b"third"]), retry=False)


def test_failed_retry_reports_possibly_appended_count(broker: BrokerProcess, stream: str) -> None:
    tally = AppendTally(stream)

    def append_without_answer() -> None:
        with pytest.raises(UnansweredException) as caught:
            tally.append(client, Batch([b"second", b"third"]), retry=True)
        assert caught.value.message.endswith("appended, and up to 2 more may have been")

    with contextlib.ExitStack() as way:
        relay = way.enter_context(Relay(broker))
        client = client_of(relay, reconnect_timeout=0)
        tally.append(client, Batch([b"first"]), retry=True)
        relay.hold()
        with client, running(append_without_answer):
            wait_until(lambda: len(stored(broker, stream)) == 3)
            way.close()


# A server without extensions


def test_server_without_extensions_gets_single_messages(
    broker: BrokerProcess, plain_server: Relay, tmp_path: Path
) -> None:
    name = new_name()
    lines = [b"%d" % number for number in range(6000)]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))

    created = run(plain_server, "append", name, "--create", "a")
    finished = run(plain_server, "append", name, "--file", f"{tmp_path}/lines")

    assert created == Finished(0, "0\n", "")
    assert finished == Finished(0, f"appended 6,000 messages to {name}: 1..6000\n", "")
    assert stored(broker, name) == [b"a", *lines]
    assert plain_server.operations.count(Operation.AppendMessage) == 6001
