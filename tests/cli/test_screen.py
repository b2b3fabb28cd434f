"""The screen: its size, keys and signals, and that it restores the terminal."""

from __future__ import annotations

import shlex
import sys

import pytest

from tests.support import wait_until

from .terminal import Terminal

# Draws the last event and the size of the screen, until q.
PROGRAM = """
import sys
from penstock.cli.screen import Screen, ScreenEvent

event = None
with Screen() as screen:
    while event is not ScreenEvent.end:
        width, height = screen.size
        screen.draw([f"{event and event.name} {width}x{height}", "y" * 300])
        event = screen.wait(float(sys.argv[1]))
"""
LONG = "1000"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("screen") / "program.py"
    path.write_text(PROGRAM)
    return shlex.join([sys.executable, str(path)])


def run(program: str, seconds: str = LONG) -> Terminal:
    return Terminal(*shlex.split(program), seconds, rows=30, columns=90)


def test_screen_uses_the_alternate_screen_until_q(program: str) -> None:
    with run(program) as terminal:
        wait_until(lambda: terminal.lines[0] == "None 89x30")
        assert terminal.text.startswith("\x1b[?1049h")
        assert not terminal.has_its_attributes()

        terminal.type("q")
        assert terminal.wait() == 0
        wait_until(terminal.is_restored)


def test_wait_ends_after_its_timeout(program: str) -> None:
    with run(program, "0.01") as terminal:
        wait_until(lambda: terminal.lines[0] == "time 89x30")


def test_other_keys_redraw(program: str) -> None:
    with run(program) as terminal:
        wait_until(lambda: terminal.frame)
        terminal.type("x")
        wait_until(lambda: terminal.lines[0] == "redraw 89x30")


def test_resize_redraws_with_the_new_size(program: str) -> None:
    with run(program) as terminal:
        wait_until(lambda: terminal.frame)
        terminal.resize(8, 40)
        wait_until(lambda: terminal.lines[0] == "redraw 39x8")


def test_sigterm_restores_the_terminal(program: str) -> None:
    with run(program) as terminal:
        wait_until(lambda: terminal.frame)
        terminal.process.terminate()

        assert terminal.wait() == 0
        wait_until(terminal.is_restored)


def test_suspend_restores_the_terminal(program: str) -> None:
    # Only a child of a shell can be suspended.
    with Terminal("bash", "--norc", "-i", PS1="ready> ") as terminal:
        wait_until(lambda: terminal.text.endswith("ready> "))
        terminal.type(f"{program} {LONG}\n")
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


def test_screen_works_without_a_keyboard(program: str) -> None:
    with Terminal("sh", "-c", f"exec {program} 0.01 </dev/null") as terminal:
        wait_until(lambda: terminal.lines[0].startswith("time "))
        assert terminal.has_its_attributes()
        terminal.process.terminate()
        assert terminal.wait() == 0
        wait_until(terminal.is_restored)
