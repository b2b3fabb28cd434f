"""Supervised programs: shell scripts in real processes."""

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

from penstock.cli.supervision import SupervisedProgram
from tests.support import TIMEOUT_S, wait_until

# They print their process ids for the tests.
_RUNS = 'echo "ready $$"; exec sleep 1000'
_IGNORES_SIGTERM = 'trap "" TERM; echo "ready $$"; while :; do sleep 1000; done'
_HAS_A_CHILD = 'sleep 1000 & echo "ready $$ $!"; wait'
_ENDS_AT_ONCE = "exit 7"

Make = Callable[..., SupervisedProgram]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[SupervisedProgram] = []

    def make_program(*scripts: str, **arguments: float) -> SupervisedProgram:
        """A program that runs the next script at each start, and finally repeats the last one."""
        left = list(scripts)

        def command() -> list[str]:
            return ["/bin/sh", "-c", left.pop(0) if len(left) > 1 else left[0]]

        program = SupervisedProgram("thing", command, "ready", **arguments)  # type: ignore[arg-type]
        made.append(program)
        return program

    yield make_program
    for program in made:
        program.stop()


def start(program: SupervisedProgram) -> list[int]:
    """Starts the program and returns the process ids that it prints."""
    program.start()
    return ids_in(program.wait_until_ready(threading.Event()))


def ids_in(line: str) -> list[int]:
    return [int(word) for word in line.removeprefix("ready").split()]


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def next_event(program: SupervisedProgram) -> str:
    return wait_until(program.poll) or ""


def test_program_is_ready_after_its_ready_line(make: Make) -> None:
    program = make(f"echo one; echo not ready; {_RUNS}")

    (pid,) = start(program)

    assert not has_ended(pid)
    assert program.poll() is None


def test_large_output_does_not_block_the_program(make: Make) -> None:
    (pid,) = start(make(f"head -c 1000000 /dev/zero | tr '\\0' '\\n'; {_RUNS}"))

    assert not has_ended(pid)


def test_end_before_ready_returns_an_empty_line(make: Make) -> None:
    program = make(_ENDS_AT_ONCE)

    assert start(program) == []
    assert program.stop() == 7


def test_wait_until_ready_ends_when_is_over_is_set(make: Make) -> None:
    program = make("exec sleep 1000")
    is_over = threading.Event()
    program.start()
    threading.Timer(0.01, is_over.set).start()

    assert program.wait_until_ready(is_over) == ""


# Its signal handler takes longer than one poll for the ready line.
_SLOW_HANDLER = """
import signal, sys, threading, time
from penstock.cli.supervision import SupervisedProgram

is_over = threading.Event()

def handle(*_):
    time.sleep(1)
    is_over.set()

signal.signal(signal.SIGTERM, handle)
program = SupervisedProgram("thing", lambda: ["sleep", "1000"], "ready")
program.start()
print("waiting", flush=True)
try:
    print(repr(program.wait_until_ready(is_over)))
finally:
    program.stop()
"""


def test_wait_until_ready_ends_after_a_slow_signal_handler() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SLOW_HANDLER], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.terminate()
            assert process.communicate(timeout=TIMEOUT_S)[0] == "''\n"
        finally:
            process.kill()


def test_program_gets_its_environment(make: Make) -> None:
    program = SupervisedProgram(
        "thing", lambda: ["/bin/sh", "-c", 'echo "ready $ANSWER"'], "ready", {"ANSWER": "42"}
    )
    program.start()

    assert program.wait_until_ready(threading.Event()) == "ready 42"
    program.stop()


def test_killed_program_is_restarted_and_reported(make: Make) -> None:
    program = make(_RUNS)
    (first,) = start(program)

    os.kill(first, signal.SIGKILL)

    ended = next_event(program)
    assert re.fullmatch(r"the thing ended \(SIGKILL\); restarting it in 0\.\d s", ended)
    (second,) = ids_in(next_event(program))
    assert second != first
    assert not has_ended(second)


def test_pauses_between_restarts_grow(make: Make) -> None:
    program = make(_ENDS_AT_ONCE)
    program.start()

    pauses = []
    for _ in range(3):
        ended = re.fullmatch(
            r"the thing ended \(exit code 7\); restarting it in (.*) s", next_event(program)
        )
        assert ended is not None
        pauses.append(float(ended[1]))

    # Doubled each time, and randomly reduced by up to a half.
    assert 0.2 <= pauses[0] <= 0.5
    assert 0.5 <= pauses[1] <= 1.0
    assert 1.0 <= pauses[2] <= 2.0


def test_failed_restart_is_retried() -> None:
    commands = [["/bin/sh", "-c", _RUNS], ["/nowhere/program"], ["/bin/sh", "-c", _RUNS]]
    program = SupervisedProgram("thing", lambda: commands.pop(0), "ready")
    (pid,) = start(program)

    os.kill(pid, signal.SIGKILL)

    assert "ended (SIGKILL)" in next_event(program)
    event = next_event(program)
    assert re.fullmatch(
        r"the thing cannot be started \(.*/nowhere.*\); retrying in \d\.\d s", event
    )
    assert len(ids_in(next_event(program))) == 1
    program.stop()


def test_children_of_a_killed_program_are_killed(make: Make) -> None:
    program = make(_HAS_A_CHILD, _RUNS)
    pid, child = start(program)

    os.kill(pid, signal.SIGKILL)
    next_event(program)

    wait_until(lambda: has_ended(child))


def test_stop_ends_the_program_and_its_children(make: Make) -> None:
    program = make(_HAS_A_CHILD)
    pid, child = start(program)

    assert program.stop() == -signal.SIGTERM

    assert has_ended(pid)
    wait_until(lambda: has_ended(child))


def test_stop_kills_a_program_that_ignores_sigterm(make: Make) -> None:
    program = make(_IGNORES_SIGTERM, stop_seconds=0.1)
    (pid,) = start(program)

    assert program.stop() == -signal.SIGKILL

    assert has_ended(pid)


def test_stop_returns_the_exit_code(make: Make) -> None:
    program = make('trap "exit 3" TERM; echo "ready $$"; while :; do sleep 0.01; done')
    start(program)

    assert program.stop() == 3


def test_stop_cancels_a_pending_restart(make: Make, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    program = make(f"echo x >> {starts}; exit 1")
    program.start()
    next_event(program)

    assert program.stop() == 0
    assert starts.read_text() == "x\n"


def test_program_runs_in_its_own_session(make: Make) -> None:
    (pid,) = start(make(_RUNS))

    assert os.getsid(pid) == pid != os.getsid(0)
