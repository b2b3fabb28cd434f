"""Programs that are kept running: small ones, with real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from penstock.cli.supervision import Program
from tests.support import TIMEOUT_S, wait_until

# They tell their process ids, so that a test can do something to them.
_RUNS = 'echo "ready $$"; exec sleep 1000'
_IGNORES_SIGTERM = 'trap "" TERM; echo "ready $$"; while :; do sleep 1000; done'
_HAS_A_CHILD = 'sleep 1000 & echo "ready $$ $!"; wait'
_ENDS_AT_ONCE = "exit 7"

Make = Callable[..., Program]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Program] = []

    def make_program(*scripts: str, **arguments: float) -> Program:
        """One that runs another script each time it is started, and then the last one again."""
        left = list(scripts)

        def command() -> list[str]:
            return ["/bin/sh", "-c", left.pop(0) if len(left) > 1 else left[0]]

        program = Program("thing", command, "ready", **arguments)  # type: ignore[arg-type]
        made.append(program)
        return program

    yield make_program
    for program in made:
        program.stop()


def start(program: Program) -> list[int]:
    """Its process ids."""
    program.start()
    return ids_in(program.wait_until_ready(threading.Event()))


def ids_in(line: str) -> list[int]:
    return [int(word) for word in line.removeprefix("ready").split()]


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def news_of(program: Program) -> str:
    return wait_until(program.look) or ""


def test_a_program_is_ready_when_it_says_so_whatever_else_it_says(make: Make) -> None:
    program = make(f"echo one; echo not ready; {_RUNS}")

    (pid,) = start(program)

    assert not is_gone(pid)
    assert program.look() is None


def test_one_that_says_more_than_a_pipe_holds_is_not_held_up(make: Make) -> None:
    (pid,) = start(make(f"head -c 1000000 /dev/zero | tr '\\0' '\\n'; {_RUNS}"))

    assert not is_gone(pid)


def test_one_that_ends_before_it_is_ready_is_told_by_an_empty_line(make: Make) -> None:
    program = make(_ENDS_AT_ONCE)

    assert start(program) == []
    assert program.stop() == 7


def test_nobody_waits_for_one_that_never_gets_ready_when_all_is_over(make: Make) -> None:
    program = make("exec sleep 1000")
    is_over = threading.Event()
    program.start()
    threading.Timer(0.01, is_over.set).start()

    assert program.wait_until_ready(is_over) == ""


# Its handler takes longer than one look for the line that says that the program is ready.
_SLOW_HANDLER = """
import signal, sys, threading, time
from penstock.cli.supervision import Program

is_over = threading.Event()

def handle(*_):
    time.sleep(1)
    is_over.set()

signal.signal(signal.SIGTERM, handle)
program = Program("thing", lambda: ["sleep", "1000"], "ready")
program.start()
print("waits", flush=True)
try:
    print(repr(program.wait_until_ready(is_over)))
finally:
    program.stop()
"""


def test_waiting_for_a_program_ends_after_a_slow_signal_handler() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SLOW_HANDLER], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waits\n"
            process.terminate()
            assert process.communicate(timeout=TIMEOUT_S)[0] == "''\n"
        finally:
            process.kill()


def test_what_it_is_told_in_its_environment_arrives(make: Make) -> None:
    program = Program(
        "thing", lambda: ["/bin/sh", "-c", 'echo "ready $ANSWER"'], "ready", {"ANSWER": "42"}
    )
    program.start()

    assert program.wait_until_ready(threading.Event()) == "ready 42"
    program.stop()


def test_one_that_is_killed_is_started_again_and_both_is_told(make: Make) -> None:
    program = make(_RUNS)
    (first,) = start(program)

    os.kill(first, signal.SIGKILL)

    ended = news_of(program)
    assert re.fullmatch(r"the thing ended \(SIGKILL\); it starts again in 0\.\d s", ended)
    (second,) = ids_in(news_of(program))
    assert second != first
    assert not is_gone(second)


def test_one_that_ends_again_and_again_waits_longer_each_time(make: Make) -> None:
    program = make(_ENDS_AT_ONCE)
    program.start()

    pauses = []
    for _ in range(3):
        told = re.fullmatch(
            r"the thing ended \(exit code 7\); it starts again in (.*) s", news_of(program)
        )
        assert told is not None
        pauses.append(float(told[1]))

    # Twice as long each time, and up to a half less by chance.
    assert 0.2 <= pauses[0] <= 0.5
    assert 0.5 <= pauses[1] <= 1.0
    assert 1.0 <= pauses[2] <= 2.0


def test_one_that_cannot_be_started_again_is_tried_until_it_can() -> None:
    commands = [["/bin/sh", "-c", _RUNS], ["/nowhere/program"], ["/bin/sh", "-c", _RUNS]]
    program = Program("thing", lambda: commands.pop(0), "ready")
    (pid,) = start(program)

    os.kill(pid, signal.SIGKILL)

    assert "ended (SIGKILL)" in news_of(program)
    told = news_of(program)
    assert re.fullmatch(r"the thing cannot be started \(.*/nowhere.*\); again in \d\.\d s", told)
    assert len(ids_in(news_of(program))) == 1
    program.stop()


def test_what_a_program_has_started_does_not_outlive_it(make: Make) -> None:
    program = make(_HAS_A_CHILD, _RUNS)
    pid, child = start(program)

    os.kill(pid, signal.SIGKILL)
    news_of(program)

    wait_until(lambda: is_gone(child))


def test_one_that_is_stopped_takes_along_what_it_has_started(make: Make) -> None:
    program = make(_HAS_A_CHILD)
    pid, child = start(program)

    assert program.stop() == -signal.SIGTERM

    assert is_gone(pid)
    wait_until(lambda: is_gone(child))


def test_one_that_does_not_listen_is_killed_in_the_end(make: Make) -> None:
    program = make(_IGNORES_SIGTERM, stop_seconds=0.1)
    (pid,) = start(program)

    assert program.stop() == -signal.SIGKILL

    assert is_gone(pid)


def test_a_clean_end_keeps_its_exit_code(make: Make) -> None:
    program = make('trap "exit 3" TERM; echo "ready $$"; while :; do sleep 0.01; done')
    start(program)

    assert program.stop() == 3


def test_one_that_waits_to_be_started_again_is_not_when_it_is_stopped(
    make: Make, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    program = make(f"echo x >> {starts}; exit 1")
    program.start()
    news_of(program)

    assert program.stop() == 0
    assert starts.read_text() == "x\n"


def test_an_interrupt_in_the_terminal_is_not_for_the_program(make: Make) -> None:
    (pid,) = start(make(_RUNS))

    assert os.getsid(pid) == pid != os.getsid(0)
