"""A screen: that it fits, that keys and signals wake it, and what it leaves behind."""

from __future__ import annotations

import shlex
import sys

import pytest

from tests.support import wait_until

from .terminal import Terminal

# It draws why it draws, and on how much room, until it is told to end.
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


def test_it_shows_a_page_of_its_own_until_q(program: str) -> None:
    with run(program) as terminal:
        wait_until(lambda: terminal.lines[0] == "None 89x30")
        assert terminal.text.startswith("\x1b[?1049h")
        assert not terminal.has_its_attributes()

        terminal.type("q")
        assert terminal.wait() == 0
        wait_until(terminal.is_restored)


def test_it_is_drawn_again_when_time_has_passed(program: str) -> None:
    with run(program, "0.01") as terminal:
        wait_until(lambda: terminal.lines[0] == "time 89x30")


def test_other_keys_only_draw_it_again(program: str) -> None:
    with run(program) as terminal:
        wait_until(lambda: terminal.frame)
        terminal.type("x")
        wait_until(lambda: terminal.lines[0] == "redraw 89x30")


def test_it_knows_when_the_window_has_changed(program: str) -> None:
    with run(program) as terminal:
        wait_until(lambda: terminal.frame)
        terminal.resize(8, 40)
        wait_until(lambda: terminal.lines[0] == "redraw 39x8")


def test_what_asks_it_to_end_finds_the_terminal_restored(program: str) -> None:
    with run(program) as terminal:
        wait_until(lambda: terminal.frame)
        terminal.process.terminate()

        assert terminal.wait() == 0
        wait_until(terminal.is_restored)


def test_while_it_is_suspended_the_terminal_is_restored(program: str) -> None:
    # Only a shell's child can be suspended: there is somebody to go back to.
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


def test_it_needs_no_keyboard(program: str) -> None:
    with Terminal("sh", "-c", f"exec {program} 0.01 </dev/null") as terminal:
        wait_until(lambda: terminal.lines[0].startswith("time "))
        assert terminal.has_its_attributes()
        terminal.process.terminate()
        assert terminal.wait() == 0
        wait_until(terminal.is_restored)
