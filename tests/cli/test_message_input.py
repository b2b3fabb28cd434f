"""Messages from arguments, files, pipes and terminals."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import click
import pytest

from penstock.cli import message_input as source
from penstock.cli.main import Failure
from penstock.cli.message_input import (
    Batch,
    MessageInput,
    MessageInputError,
    decode_arguments,
    read_chunks,
)
from penstock.cli.payload import Encoding

from .messaging import BareTerminal


def read_file(
    path: Path, data: bytes, encoding: Encoding = Encoding.TEXT, as_blob: bool = False
) -> list[Batch]:
    path.write_bytes(data)
    return list(MessageInput(str(path)).batches(encoding, as_blob))


def messages_of(batches: list[Batch]) -> list[bytes]:
    return [message for batch in batches for message in batch.messages]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "input"


# Arguments


@pytest.mark.parametrize(
    ("encoding", "arguments", "messages"),
    [
        (Encoding.TEXT, [b"\xff\x01 ", "sécond".encode()], [b"\xff\x01 ", "sécond".encode()]),
        (Encoding.HEX, [b"00ff", b"de ad"], [b"\x00\xff", b"\xde\xad"]),
        (Encoding.BASE64, [b"AP8="], [b"\x00\xff"]),
    ],
)
def test_arguments_are_decoded(
    encoding: Encoding, arguments: list[bytes], messages: list[bytes]
) -> None:
    assert decode_arguments([os.fsdecode(word) for word in arguments], encoding) == [
        Batch(messages)
    ]


@pytest.mark.parametrize(
    ("encoding", "arguments", "problem"),
    [
        (Encoding.HEX, ["00", "0"], "message 2 is not hex (odd-length string)"),
        (Encoding.BASE64, ["a"], "message 1 is not base64"),
        (Encoding.TEXT, ["a", ""], "message 2 is empty: a message has at least one byte"),
        (Encoding.HEX, ["0x"], "message 1 is empty: a message has at least one byte"),
    ],
)
def test_invalid_argument_is_rejected(
    encoding: Encoding, arguments: list[str], problem: str
) -> None:
    with pytest.raises(click.UsageError) as rejected:
        decode_arguments(arguments, encoding)
    assert rejected.value.message.startswith(problem)


def test_many_arguments_are_split_into_batches() -> None:
    batches = decode_arguments([str(number) for number in range(12_345)], Encoding.TEXT)

    assert [len(batch.messages) for batch in batches] == [5000, 5000, 2345]
    assert messages_of(batches) == [b"%d" % number for number in range(12_345)]


# Lines


def test_each_line_is_a_message_and_empty_lines_are_counted(path: Path) -> None:
    assert read_file(path, b"one\n\n \r\n\xff\xfe\n\n\nno end of line") == [
        Batch([b"one", b" \r", b"\xff\xfe"], 13, 3),
        Batch([b"no end of line"], 15),
    ]


@pytest.mark.parametrize("data", [b"", b"\n"])
def test_input_without_lines_has_no_messages(path: Path, data: bytes) -> None:
    assert messages_of(read_file(path, data)) == []


def test_lines_of_any_length_are_read(path: Path) -> None:
    some = random.Random(7)
    lengths = [1, 2_500_000, 3, *(some.randrange(1, 3000) for _ in range(3000)), 1_048_577, 5]
    lines = [some.randbytes(length).replace(b"\n", b" ") for length in lengths]

    batches = read_file(path, b"\n".join(lines))

    assert messages_of(batches) == lines
    assert sum(batch.input_bytes for batch in batches) == sum(lengths) + len(lines)
    for batch in batches:
        # A larger line gets its own batch. A batch may start with a line of the previous chunk.
        assert len(batch.messages) == 1 or sum(map(len, batch.messages)) < 2 * 1024 * 1024


def test_many_lines_are_split_into_batches(path: Path) -> None:
    lines = [b"%d" % number for number in range(12_345)]

    batches = read_file(path, b"\n".join(lines) + b"\n")

    assert [len(batch.messages) for batch in batches] == [5000, 5000, 2345]
    assert messages_of(batches) == lines


@pytest.mark.parametrize(
    ("encoding", "lines"),
    [
        (Encoding.HEX, b"00 ff\r\n \r\n0a\n"),
        (Encoding.BASE64, b"AP8=\r\n \r\nCg==\n"),
    ],
)
def test_encoded_lines_are_decoded(path: Path, encoding: Encoding, lines: bytes) -> None:
    assert read_file(path, lines, encoding) == [
        Batch([b"\x00\xff", b"\n"], len(lines), empty_lines=1)
    ]


def test_malformed_line_is_reported_after_the_batches_before_it(path: Path) -> None:
    path.write_bytes(b"00\n" * 5002 + b"xx\n" + b"00\n" * 5000)
    batches = MessageInput(str(path)).batches(Encoding.HEX, as_blob=False)

    assert next(batches).messages == [b"\x00"] * 5000
    with pytest.raises(MessageInputError) as rejected:
        next(batches)
    assert str(rejected.value) == f"{path}, line 5,003: not hex (non-hexadecimal digit found)"


def test_endless_line_is_rejected_at_the_maximum_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source, "MAX_FRAME_BYTES", 10_000_000)

    with pytest.raises(MessageInputError) as rejected:
        next(MessageInput("/dev/zero").batches(Encoding.TEXT, as_blob=False))

    assert str(rejected.value) == (
        "a line of /dev/zero is larger than 10,000,000 bytes, the maximum for a message"
    )


# Blobs


def test_blob_is_one_message(path: Path) -> None:
    assert read_file(path, b"file\n\na\n", as_blob=True) == [Batch([b"file\n\na\n"], 8)]
    assert read_file(path, b"ff\n00\n", Encoding.HEX, as_blob=True) == [Batch([b"\xff\x00"], 6)]


def test_empty_blob_is_rejected(path: Path) -> None:
    with pytest.raises(MessageInputError) as rejected:
        read_file(path, b"", as_blob=True)
    assert str(rejected.value) == f"{path} is empty: a message has at least one byte"


# Files, pipes and terminals


def test_chunks_do_not_wait_for_more_data() -> None:
    reading, writing = os.pipe()
    chunks = read_chunks(reading, size=4)
    with os.fdopen(reading), os.fdopen(writing, "wb", buffering=0) as pipe:
        pipe.write(b"a")
        assert next(chunks) == b"a"
        pipe.write(b"bc")
        pipe.write(b"defgh")
        assert next(chunks) == b"bcde"
        assert next(chunks) == b"fgh"
        pipe.close()
        assert list(chunks) == []


def test_size_is_known_for_files_but_not_for_pipes(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(b"12345")
    assert MessageInput(str(path)).size == 5
    with path.open("rb", buffering=0) as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert MessageInput().size == 5
        file.read(2)
        assert MessageInput().size == 3
    os.mkfifo(tmp_path / "pipe")
    assert MessageInput(str(tmp_path / "pipe")).size is None


def test_only_standard_input_on_a_terminal_is_typed(
    terminal: BareTerminal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.touch()
    with terminal.keyboard() as keyboard, path.open() as file:
        monkeypatch.setattr(sys, "stdin", keyboard)
        assert MessageInput().is_typed
        assert not MessageInput(str(path)).is_typed
        monkeypatch.setattr(sys, "stdin", file)
        assert not MessageInput().is_typed


def test_closed_standard_input_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    # Python sets it to None after `<&-` in a shell.
    monkeypatch.setattr(sys, "stdin", None)

    with pytest.raises(Failure, match="standard input is closed"):
        list(MessageInput().batches(Encoding.TEXT, as_blob=False))
