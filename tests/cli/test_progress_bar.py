"""The progress bar and the message count, on a terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from penstock.cli.message_input import Batch, MessageInput
from penstock.cli.progress_bar import Progress, make_progress
from tests.support import wait_until

from .messaging import BareTerminal


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_long_input_of_known_size_shows_a_bar(terminal: BareTerminal) -> None:
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


def test_long_input_of_unknown_size_shows_a_count(terminal: BareTerminal) -> None:
    clock = Clock()
    with Progress(None, terminal.file, clock) as progress:
        progress.update(Batch([b"x"] * 1000, 2000))
        clock.now = 2.0
        progress.update(Batch([b"x"] * 234, 468))

    assert terminal.close() == "\r1,234 messages\r\n"


def test_short_input_shows_no_progress(terminal: BareTerminal) -> None:
    with Progress(10, terminal.file, Clock()) as progress:
        progress.update(Batch([b"x"], 10))

    assert terminal.close() == ""


def test_progress_is_shown_only_on_a_terminal_and_if_wanted(
    terminal: BareTerminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lines").write_bytes(b"12345")
    file = MessageInput(str(tmp_path / "lines"))

    with monkeypatch.context() as patch, terminal.keyboard() as keyboard:
        patch.setattr(sys, "stdin", keyboard)
        patch.setattr(sys, "stderr", terminal.file)
        assert make_progress([file], is_wanted=True).file is terminal.file
        assert make_progress([file], is_wanted=False).file is None
        assert make_progress([file, MessageInput()], is_wanted=True).file is None
        assert make_progress([], is_wanted=True).file is None
        patch.setattr(sys, "stderr", io.StringIO())
        assert make_progress([file], is_wanted=True).file is None
