"""`penstock append` on a real broker, in pipes where that makes a difference."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli import progress_bar as progress
from penstock.cli.append import Tally
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

# What is said


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


def test_no_input_is_no_messages(broker: BrokerProcess, stream: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"\n")

    finished = run(broker, "append", stream, "--file", "/dev/null")
    told = run(broker, "append", stream, "--json", "--file", f"{tmp_path}/lines")

    assert finished == Finished(0, f"appended 0 messages to {stream}\n", "")
    assert (told.code, told.error) == (0, "penstock: 1 empty line was skipped\n")
    assert json.loads(told.output) == {
        "stream": stream,
        "count": 0,
        "firstSequenceNumber": None,
        "lastSequenceNumber": None,
    }


def test_quiet_is_silent(broker: BrokerProcess, stream: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a\n\nb\n")

    finished = run(broker, "append", stream, "--quiet", "--file", str(tmp_path / "lines"))

    assert finished == Finished(0, "", "")
    assert stored(broker, stream) == [b"a", b"b"]


# What is appended


def test_each_line_of_standard_input_is_a_message(broker: BrokerProcess, stream: str) -> None:
    lines = b"one\n\n \r\n\xff\xfe\n\n\nno end of line"

    finished = run_in_pipes(broker, lines, "append", stream)

    assert finished.stdout.decode() == f"appended 4 messages to {stream}: 0..3\n"
    assert finished.stderr == b"penstock: 3 empty lines were skipped\n"
    assert finished.returncode == 0
    assert stored(broker, stream) == [b"one", b" \r", b"\xff\xfe", b"no end of line"]


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


def test_files_and_standard_input_are_appended_one_after_the_other(
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


def test_a_large_file_comes_through(broker: BrokerProcess, stream: str, tmp_path: Path) -> None:
    lines = [*(b"%d" % number for number in range(12_345)), bytes(2_500_000), b"last"]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))

    finished = run(broker, "append", stream, "--file", f"{tmp_path}/lines")

    assert finished == Finished(0, f"appended 12,347 messages to {stream}: 0..12346\n", "")
    assert stored(broker, stream) == lines


def test_arguments_lines_and_blobs_may_be_encoded(
    broker: BrokerProcess, stream: str, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_bytes(b"AP8=\n\nCg==\n")
    (tmp_path / "blob").write_bytes(b"00\nff\n")

    run(broker, "append", stream, "--encoding", "hex", "00ff")
    run(broker, "append", stream, "--encoding", "base64", "--file", f"{tmp_path}/lines")
    run(broker, "append", stream, "--encoding", "hex", "--blob", "--file", f"{tmp_path}/blob")

    assert stored(broker, stream) == [b"\x00\xff", b"\x00\xff", b"\n", b"\x00\xff"]


def test_a_stream_is_created_if_there_is_none(broker: BrokerProcess) -> None:
    name = new_name()

    assert run(broker, "append", name, "--create", "a") == Finished(0, "0\n", "")
    assert run(broker, "append", name, "--create", "b") == Finished(0, "1\n", "")

    with broker.connect() as client:
        info = client.call(Operation.DescribeMessageStream, name=name)["messageStreamInfo"]
    assert info["definition"]["strategyOnFull"] == 1


# At a terminal


def test_who_types_is_told_how_to_end(
    broker: BrokerProcess, stream: str, terminal: BareTerminal, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.type("one\ntwo\n\x04")
    with terminal.keyboard() as keyboard:
        run_with_files(broker, "append", stream, stdin=keyboard)

    assert capsys.readouterr() == (
        f"appended 2 messages to {stream}: 0..1\n",
        "penstock: type messages, each on a line; Ctrl-D ends\n",
    )
    assert stored(broker, stream) == [b"one", b"two"]


def test_a_count_is_shown_beside_a_long_pipe(
    broker: BrokerProcess,
    stream: str,
    terminal: BareTerminal,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(progress, "_MOMENT_SECONDS", 0.0)
    reading, writing = os.pipe()
    with os.fdopen(reading) as pipe:
        with os.fdopen(writing, "w") as lines:
            lines.write("a\nb\nc\n")
        run_with_files(broker, "append", stream, stdin=pipe, stderr=terminal.file)

    assert terminal.close() == "\r3 messages\r\n"
    assert capsys.readouterr().out == f"appended 3 messages to {stream}: 0..2\n"


# What goes wrong


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
def test_what_makes_no_sense_is_refused_before_anything_is_appended(
    broker: BrokerProcess, stream: str, words: list[str], message: str
) -> None:
    finished = run(broker, "append", stream, *words)

    assert finished.code == 2
    assert message in finished.error
    assert "Traceback" not in finished.error
    assert stored(broker, stream) == []


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


def test_an_empty_blob_is_told_with_what_was_appended_before(
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
        "1 message was appended before"
    ]
    assert stored(broker, stream) == [b"a"]


def test_an_append_to_a_stream_that_gets_full_says_how_far_it_came(
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
        assert line.endswith(f"; {appended:,} messages were appended before")


def test_a_stream_that_is_missing_is_told(broker: BrokerProcess) -> None:
    finished = run(broker, "append", "no-such", "x")

    assert finished.code == 5
    assert finished.output == ""
    (line,) = finished.error_lines
    assert line.startswith("penstock: ")
    assert "'no-such'" in line


def test_a_broker_that_is_missing_is_told() -> None:
    finished = penstock("append", "--host", "127.0.0.1", "--port", "1", "s", "x")

    assert finished.code == 3
    assert len(finished.error_lines) == 1
    assert "127.0.0.1:1" in finished.error


@pytest.mark.parametrize("words", [[], ["--create"]])
def test_a_name_that_no_stream_may_have_is_told(broker: BrokerProcess, words: list[str]) -> None:
    finished = run(broker, "append", "a/b", "x", *words)

    assert finished.code == 1
    assert len(finished.error_lines) == 1
    assert "a/b" in finished.error


def test_a_role_that_may_only_read_does_not_append(broker: BrokerProcess, stream: str) -> None:
    finished = run(broker, "append", stream, "x", token=new_token(broker, "consumer"))

    assert finished.code == 4
    assert len(finished.error_lines) == 1


def test_who_may_append_need_not_be_allowed_to_create(broker: BrokerProcess, stream: str) -> None:
    token = new_token(broker, "producer")

    assert run(broker, "append", stream, "--create", "a", token=token) == Finished(0, "0\n", "")
    assert run(broker, "append", "never-created", "--create", "a", token=token).code == 4


def new_token(broker: BrokerProcess, role: str) -> str:
    made = penstock("tokens", "create", role, "--role", role, "--root", str(broker.root))
    assert made.code == 0, made.error
    return made.output.strip()


def test_an_interrupt_says_what_was_appended(
    broker: BrokerProcess, stream: str, start: Callable[..., Started]
) -> None:
    command = start(broker, "append", stream)
    command.say("one\ntwo\n")
    wait_until(lambda: stored(broker, stream) == [b"one", b"two"])
    command.say("three")
    command.wait_until_it_has_read()

    assert command.interrupt() == Finished(
        INTERRUPTED, "", "penstock: interrupted; 2 messages were appended before\n"
    )


# A broker that goes away


def test_a_restart_between_two_lines_is_not_noticed(
    broker: BrokerProcess, stream: str, start: Callable[..., Started]
) -> None:
    command = start(broker, "append", stream)
    command.say("before\n")
    wait_until(lambda: stored(broker, stream) == [b"before"])

    broker.kill()
    broker.start()
    command.say("after\n")

    assert command.end() == Finished(0, f"appended 2 messages to {stream}: 0..1\n", "")
    assert stored(broker, stream) == [b"before", b"after"]


def lose_an_answer(broker: BrokerProcess, relay: Relay, stream: str, command: Started) -> None:
    """Lets the second message be stored, and the connection be lost before its answer comes."""
    command.say("first\n")
    wait_until(lambda: stored(broker, stream) == [b"first"])
    command.say("sec")
    command.wait_until_it_has_read()
    relay.hold()
    command.say("ond\n")
    wait_until(lambda: stored(broker, stream) == [b"first", b"second"])
    relay.cut()
    relay.release()


def test_a_lost_answer_is_told_with_what_may_have_been_appended(
    broker: BrokerProcess, relay: Relay, stream: str, start: Callable[..., Started]
) -> None:
    command = start(relay, "append", stream)
    lose_an_answer(broker, relay, stream, command)

    finished = command.end()

    assert finished.code == 3
    (line,) = finished.error_lines
    assert line.endswith("; 1 message was appended before, and up to 1 more may have been")


def test_with_retry_a_lost_answer_is_asked_for_again(
    broker: BrokerProcess, relay: Relay, stream: str, start: Callable[..., Started]
) -> None:
    command = start(relay, "append", stream, "--retry")
    lose_an_answer(broker, relay, stream, command)

    assert command.end() == Finished(0, f"appended 2 messages to {stream}: 0..2\n", "")
    assert stored(broker, stream) == [b"first", b"second", b"second"]


def test_a_broker_that_does_not_come_back_is_told_with_what_was_appended(
    broker: BrokerProcess, stream: str
) -> None:
    tally = Tally(stream)
    with Relay(broker) as relay:
        client = client_of(relay, reconnect_timeout=0)
        tally.append(client, Batch([b"first"]), retry=False)
    # Else it is sent into the void, and may have been appended.
    wait_until(lambda: not client.connected)

    with client, pytest.raises(ConnectionError, match=r"; 1 message was appended before$"):
        tally.append(client, Batch([b"second", b"third"]), retry=False)


def test_what_was_to_be_sent_again_may_have_been_appended(
    broker: BrokerProcess, stream: str
) -> None:
    tally = Tally(stream)

    def append_in_vain() -> None:
        with pytest.raises(UnansweredException) as caught:
            tally.append(client, Batch([b"second", b"third"]), retry=True)
        assert caught.value.message.endswith("before, and up to 2 more may have been")

    with contextlib.ExitStack() as way:
        relay = way.enter_context(Relay(broker))
        client = client_of(relay, reconnect_timeout=0)
        tally.append(client, Batch([b"first"]), retry=True)
        relay.hold()
        with client, running(append_in_vain):
            wait_until(lambda: len(stored(broker, stream)) == 3)
            way.close()


# A server without extensions


def test_a_server_without_extensions_gets_the_messages_one_by_one(
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
