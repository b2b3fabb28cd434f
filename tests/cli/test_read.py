"""`penstock read` and `penstock tail` on a broker."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable

import pytest

from penstock.cli.display import Printer
from penstock.cli.read import follow_stream
from penstock.errors import ResourceNotFoundException
from penstock.wire.operations import Operation
from tests.client.servers import Relay, client_of
from tests.support import (
    PENSTOCK,
    TIMEOUT_S,
    BrokerProcess,
    append,
    read,
    running,
    wait_until,
)

from .command import Finished, penstock
from .messaging import (
    INTERRUPTED,
    BareTerminal,
    Started,
    command_line,
    environment,
    fill,
    make_stream,
    run,
    run_in_pipes,
    run_with_files,
)


def numbers(finished: Finished) -> list[int]:
    assert finished.code == 0, finished.error
    return [int(line.split()[0]) for line in finished.output.splitlines()]


@pytest.fixture
def twenty(broker: BrokerProcess, stream: str) -> str:
    """A stream with twenty messages."""
    fill(broker, stream, *(b"message %d" % number for number in range(20)))
    return stream


# Read


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
def test_read_prints_the_selected_range(
    broker: BrokerProcess, twenty: str, words: list[str], expected: range
) -> None:
    assert numbers(run(broker, "read", twenty, *words)) == list(expected)


def test_read_starts_after_dropped_messages(broker: BrokerProcess) -> None:
    stream = make_stream(broker, maxSize=2048, streamSegmentSize=1024)
    with broker.connect() as client:
        for _ in range(10):
            append(client, stream, bytes(500))

    read_back = numbers(run(broker, "read", stream))

    assert 0 < len(read_back) < 10
    assert read_back == list(range(read_back[0], 10))


def test_large_stream_is_read_completely_and_in_order(broker: BrokerProcess, stream: str) -> None:
    payloads = [b"%d" % number for number in range(30_000)] + [bytes(300_000), b"\xff\r\n\x1b"]
    fill(broker, stream, *payloads)

    assert numbers(run(broker, "read", stream)) == list(range(30_002))
    finished = run_in_pipes(broker, b"", "read", stream, "--format", "raw")
    assert (finished.stdout, finished.stderr) == (b"".join(payloads), b"")


@pytest.mark.parametrize("command", ["read", "tail"])
def test_output_format_follows_the_options(
    broker: BrokerProcess, stream: str, command: str
) -> None:
    fill(broker, stream, b"text", b"\xff")
    with broker.connect() as client:
        time = read(client, stream)[0]["ingestTime"]

    lines = run(broker, command, stream).output.splitlines()
    assert [line.split()[0::2] for line in lines] == [["0", "text"], ["1", "0xff"]]
    words = ["--payload-only", "--format", "hex"]
    assert run(broker, command, stream, *words) == Finished(0, "74657874\nff\n", "")
    objects = run(broker, command, stream, "--json").output.splitlines()
    assert [json.loads(line) for line in objects] == [
        {"streamName": stream, "sequenceNumber": number, "ingestTime": time} | fields
        for number, fields in enumerate(
            [{"payload": "text"}, {"payload": "/w==", "encoding": "base64"}]
        )
    ]


def test_payload_cannot_control_the_terminal(
    broker: BrokerProcess, stream: str, terminal: BareTerminal
) -> None:
    fill(broker, stream, b"\x1b[31mred\nagain\r\x08")

    run_with_files(
        broker, "read", stream, "--payload-only", "--format", "text", stdout=terminal.file
    )

    assert terminal.close() == "\\x1b[31mred\r\nagain\\r\\x08\r\n"


def test_closed_output_pipe_ends_the_command_quietly(broker: BrokerProcess, stream: str) -> None:
    fill(broker, stream, *(b"message %d" % number for number in range(50_000)))
    reader = subprocess.Popen(
        [str(PENSTOCK), *command_line(broker, "read", stream, "--payload-only")],
        env=environment(broker),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert reader.stdout is not None
    assert reader.stderr is not None
    with reader.stdout, reader.stderr:
        assert reader.stdout.readline() == b"message 0\n"
        reader.stdout.close()

        assert reader.wait(TIMEOUT_S) in (0, 1)
        assert reader.stderr.read() == b""


@pytest.mark.parametrize("command", ["read", "tail"])
def test_missing_stream_fails(broker: BrokerProcess, command: str) -> None:
    finished = run(broker, command, "no-such")

    assert finished.code == 5
    assert finished.output == ""
    (line,) = finished.error_lines
    assert line.startswith("penstock: ")
    assert "'no-such'" in line


@pytest.mark.parametrize("words", [["read"], ["tail"], ["tail", "-f"]])
def test_unreachable_broker_fails(words: list[str]) -> None:
    finished = penstock(*words, "s", "--host", "127.0.0.1", "--port", "1")

    assert finished.code == 3
    assert len(finished.error_lines) == 1
    assert "127.0.0.1:1" in finished.error


def test_invalid_stream_name_fails(broker: BrokerProcess) -> None:
    finished = run(broker, "read", "a/b")

    assert finished.code == 1
    assert len(finished.error_lines) == 1
    assert "a/b" in finished.error


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
def test_tail_prints_the_last_messages(
    broker: BrokerProcess, twenty: str, words: list[str], expected: range
) -> None:
    assert numbers(run(broker, "tail", twenty, *words)) == list(expected)


def test_tail_rejects_limit_with_start() -> None:
    finished = penstock("tail", "a-stream", "-n", "1", "--start", "1")

    assert finished.code == 2
    assert "--limit and --start exclude each other" in finished.error


def test_consumer_may_tail(broker: BrokerProcess, twenty: str) -> None:
    words = ["tokens", "create", "reader", "--role", "consumer", "--root", str(broker.root)]
    token = penstock(*words).output.strip()

    assert len(numbers(run(broker, "tail", twenty, token=token))) == 10


@pytest.mark.parametrize(("words", "first"), [(["-n", "2"], ["old 1", "old 2"]), (["-n", "0"], [])])
def test_follow_prints_new_messages_until_ctrl_c(
    broker: BrokerProcess,
    stream: str,
    start: Callable[..., Started],
    words: list[str],
    first: list[str],
) -> None:
    fill(broker, stream, b"old 0", b"old 1", b"old 2")
    command = start(broker, "tail", "--follow", "--payload-only", stream, *words)

    assert [command.next_line() for _ in first] == first
    # Once the command waits, every further message is new to it.
    wait_until(lambda: waiting_reads(broker, stream) == 1)
    for number in range(3):
        fill(broker, stream, b"new %d" % number)
        assert command.next_line() == f"new {number}"

    assert command.interrupt() == Finished(INTERRUPTED, "", "")


def waiting_reads(broker: BrokerProcess, stream: str) -> int:
    with broker.connect() as client:
        streams = client.call(Operation.Statistics)["statistics"]["streams"]
    return sum(one["waitingReads"] for one in streams if one["name"] == stream)


def test_follow_ends_when_the_stream_is_deleted(
    broker: BrokerProcess, stream: str, start: Callable[..., Started]
) -> None:
    command = start(broker, "tail", "-f", stream)
    wait_until(lambda: waiting_reads(broker, stream) == 1)

    with broker.connect() as client:
        client.call(Operation.DeleteMessageStream, name=stream)

    finished = command.end()
    assert finished.code == 5
    assert len(finished.error_lines) == 1


def test_follow_survives_a_kill_and_restart_of_the_broker(
    broker: BrokerProcess, stream: str, start: Callable[..., Started]
) -> None:
    fill(broker, stream, b"a", b"b")
    command = start(broker, "tail", "-f", "--payload-only", stream)
    assert [command.next_line() for _ in range(2)] == ["a", "b"]

    broker.kill()
    broker.start()
    fill(broker, stream, b"new")
    assert command.next_line() == "new"

    # If the broker started slowly, the command has printed that it retries.
    finished = command.interrupt()
    assert (finished.code, finished.output) == (INTERRUPTED, "")
    assert "Traceback" not in finished.error


def test_follow_retries_after_the_client_gives_up(
    broker: BrokerProcess, stream: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = io.BytesIO()
    printer = Printer(lambda message: message.payload + b"\n", output)
    printed = ""

    def has_printed(text: str) -> bool:
        nonlocal printed
        printed += capsys.readouterr().err
        return text in printed

    def follow_until_it_is_deleted() -> None:
        with pytest.raises(ResourceNotFoundException):
            follow_stream(client, stream, 0, printer)

    # The default timeout of the command is too long for a test.
    with client_of(broker, reconnect_timeout=0.1) as client, running(follow_until_it_is_deleted):
        fill(broker, stream, b"before")
        wait_until(lambda: output.getvalue() == b"before\n")
        broker.kill()
        wait_until(lambda: has_printed("; retrying until Ctrl-C\n"))
        broker.start()
        fill(broker, stream, b"after")
        wait_until(lambda: output.getvalue() == b"before\nafter\n")
        with broker.connect() as connection:
            connection.call(Operation.DeleteMessageStream, name=stream)

    assert has_printed(f"penstock: reconnected to 127.0.0.1:{broker.port}\n")
    assert printed.count("retrying until") == 1


# A server without extensions


def test_server_without_extensions_is_read_completely(
    broker: BrokerProcess, stream: str, plain_server: Relay, start: Callable[..., Started]
) -> None:
    fill(broker, stream, *(b"old %d" % number for number in range(2500)))

    assert numbers(run(plain_server, "read", stream)) == list(range(2500))
    assert numbers(run(plain_server, "tail", stream, "-n", "3")) == [2497, 2498, 2499]
    command = start(plain_server, "tail", "-f", "--payload-only", "-n", "1", stream)
    assert command.next_line() == "old 2499"
    fill(broker, stream, b"new")
    assert command.next_line() == "new"
    assert command.interrupt() == Finished(INTERRUPTED, "", "")
    assert max(plain_server.operations) < Operation.AppendMessages
