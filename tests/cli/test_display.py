"""Printed messages in every format."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from datetime import datetime

import pytest

from penstock.cli.display import Display, Printer
from penstock.cli.main import Failure
from penstock.cli.payload import Format
from penstock.model import Message

from .command import penstock

# JSON, text, bytes, and text with control characters.
PAYLOADS = [b'{"a": [1,\n2]}', "gr\u00fcn".encode(), b"\xff\x00", b"tab\tbell\x07"]
TIME = 1_700_000_000_123
LAST_IN_HEX = PAYLOADS[3].hex()


def render(
    display: Display, payloads: list[bytes] = PAYLOADS, on_terminal: bool = False
) -> list[bytes]:
    to_bytes = display.renderer("a-stream", on_terminal)
    return [
        to_bytes(Message("a-stream", number, TIME, payload))
        for number, payload in enumerate(payloads)
    ]


# Lines


def test_line_has_number_local_time_and_payload() -> None:
    payloads = [b"plain text", b"two\nlines", b"\xff\x00", b"\x1b[31m"]

    lines = b"".join(render(Display(), payloads)).decode().splitlines()

    found = [re.fullmatch(r" +(\d+)  (\S+)  (.*)", line) for line in lines]
    assert [match and (match[1], match[3]) for match in found] == [
        ("0", "plain text"),
        ("1", r"two\nlines"),
        ("2", "0xff00"),
        ("3", "0x1b5b33316d"),
    ]
    assert found[0] is not None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", found[0][2])
    assert round(datetime.fromisoformat(found[0][2]).timestamp() * 1000) == TIME


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("text", [r'{"a": [1,\n2]}', "gr\u00fcn", r"\xff\x00", r"tab\tbell\x07"]),
        ("json", ['{"a":[1,2]}', "gr\u00fcn", "0xff00", f"0x{LAST_IN_HEX}"]),
        ("hex", [payload.hex() for payload in PAYLOADS]),
    ],
)
def test_message_is_one_line_in_every_format(form: str, expected: list[str]) -> None:
    lines = [line.decode() for line in render(Display(Format(form)))]

    assert [line.split(maxsplit=2)[2] for line in lines] == [text + "\n" for text in expected]


@pytest.mark.parametrize("form", [form for form in Format if form is not Format.RAW])
@pytest.mark.parametrize("payload_only", [False, True])
@pytest.mark.parametrize("as_json", [False, True])
def test_payload_cannot_control_terminals(form: Format, payload_only: bool, as_json: bool) -> None:
    payloads = [b"\x1b[31mred", "\x9b31mred".encode(), b"seen\nagain\r\x08", b'"\\u001b\x7f"']

    for shown in render(Display(form, payload_only, as_json), payloads, on_terminal=True):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown.decode())


# Payloads only


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("auto", [PAYLOADS[0], PAYLOADS[1], b"0xff00", b"0x" + LAST_IN_HEX.encode()]),
        ("text", PAYLOADS),
        ("json", [b'{"a":[1,2]}', PAYLOADS[1], b"0xff00", b"0x" + LAST_IN_HEX.encode()]),
        ("hex", [payload.hex().encode() for payload in PAYLOADS]),
        ("base64", [b"eyJhIjogWzEsCjJdfQ==", b"Z3LDvG4=", b"/wA=", b"dGFiCWJlbGwH"]),
    ],
)
def test_payload_only_writes_unescaped_payloads_to_a_pipe(form: str, expected: list[bytes]) -> None:
    display = Display(Format(form), payload_only=True)

    assert render(display) == [payload + b"\n" for payload in expected]


def test_raw_has_nothing_between_messages() -> None:
    for payload_only in (False, True):
        for on_terminal in (False, True):
            assert render(Display(Format.RAW, payload_only), PAYLOADS, on_terminal) == PAYLOADS


# JSON


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
def test_json_is_one_object_per_line(form: str, expected: list[dict[str, object]]) -> None:
    lines = render(Display(Format(form), as_json=True))

    assert [json.loads(line) for line in lines] == [
        {"streamName": "a-stream", "sequenceNumber": number, "ingestTime": TIME} | fields
        for number, fields in enumerate(expected)
    ]
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)


@pytest.mark.parametrize("words", [["--payload-only"], ["--format", "raw"]])
@pytest.mark.parametrize("command", ["read", "tail"])
def test_json_excludes_other_formats(command: str, words: list[str]) -> None:
    finished = penstock(command, "a-stream", "--json", *words)

    assert finished.code == 2
    assert f"--json and {' '.join(words)} exclude each other" in finished.error


# Printing


def test_messages_before_an_error_are_printed() -> None:
    def break_off() -> Iterator[Message]:
        yield Message("a-stream", 0, TIME, b"a")
        yield Message("a-stream", 1, TIME, b"b")
        raise TimeoutError

    output = io.BytesIO()
    with pytest.raises(TimeoutError):
        Printer(lambda message: message.payload, output).print(break_off())

    assert output.getvalue() == b"ab"


def test_closed_standard_output_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    # Python sets it to None after `>&-` in a shell.
    monkeypatch.setattr(sys, "stdout", None)

    with pytest.raises(Failure, match="standard output is closed"):
        Display().printer("a-stream")
