"""Programs that run side by side: started, started again when they die, stopped together."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from penstock.client.backoff import delays

# One that ran so long has recovered from what ended it before.
_WELL_SECONDS = 60.0
_FIRST_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 30.0
_LOOK_SECONDS = 0.1
# What a clean end may take before it is made short.
_STOP_SECONDS = 20.0
# For the last lines of a process that has ended.
_RELAY_SECONDS = 5.0


class Program:
    """A program of which one process is to run at any time.

    It says on standard output that it is ready, in a line that begins with `ready`.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        ready: str,
        environment: Mapping[str, str] | None = None,
        *,
        stop_seconds: float = _STOP_SECONDS,
        pass_on: Callable[[str], None] | None = None,
    ) -> None:
        """`pass_on` gets what it writes to its standard error, line by line."""
        self.name = name
        self._command = command
        self._ready = ready
        self._environment = environment
        self._stop_seconds = stop_seconds
        self._pass_on = pass_on
        self._relay: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None
        # Not a SimpleQueue: there, `get` with a timeout waits for ever if a signal's handler
        # outlasts the timeout, as of Python 3.11.
        self._ready_lines: queue.Queue[str] = queue.Queue()
        self._began = 0.0
        self._starts_at = 0.0
        self._pauses = delays(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)

    def start(self) -> None:
        # A session of its own: Ctrl-C is for whoever supervises, who then stops it. Its standard
        # input ends when the supervisor does, however that ends.
        self._process = subprocess.Popen(
            self._command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if self._pass_on is not None else None,
            text=True,
            errors="replace",
            start_new_session=True,
            env=self._environment,
        )
        self._began = time.monotonic()
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        if self._pass_on is not None:
            arguments = (self._process, self._pass_on)
            self._relay = threading.Thread(target=_relay_errors, args=arguments, daemon=True)
            self._relay.start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """All that it says is read: a pipe that is full would stop it."""
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if line.startswith(self._ready):
                    self._ready_lines.put(line.strip())
        self._ready_lines.put("")

    def wait_until_ready(self, is_over: threading.Event) -> str:
        """The line that says it, or an empty one if it ended before, or all is over."""
        while not is_over.is_set():
            with contextlib.suppress(queue.Empty):
                return self._ready_lines.get(timeout=_LOOK_SECONDS)
        return ""

    def look(self) -> str | None:
        """What there is to tell: that it is ready, that it ended. Starts it again in time."""
        if self._process is None:
            return self._start_again() if time.monotonic() >= self._starts_at else None
        code = self._process.poll()
        if code is None:
            with contextlib.suppress(queue.Empty):
                return self._ready_lines.get_nowait() or None
            return None
        if time.monotonic() - self._began > _WELL_SECONDS:
            self._pauses = delays(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        self._clear_up(self._process)
        self._process = None
        return (
            f"the {self.name} ended ({_describe(code)}); it starts again in {self._pause():.1f} s"
        )

    def _start_again(self) -> str | None:
        try:
            self.start()
        except OSError as error:
            # Its program is being replaced, or the machine has no room: the others go on.
            return f"the {self.name} cannot be started ({error}); again in {self._pause():.1f} s"
        return None

    def _pause(self) -> float:
        pause = next(self._pauses)
        self._starts_at = time.monotonic() + pause
        return pause

    def stop(self) -> int:
        """Its exit code; 0 if it was not running."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.terminate()
        try:
            code = process.wait(self._stop_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self._clear_up(process)
        return code

    def _clear_up(self, process: subprocess.Popen[str]) -> None:
        """Nothing that it started outlives it, and all that it said is passed on."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.close()
        if self._relay is not None:
            self._relay.join(_RELAY_SECONDS)


def _relay_errors(process: subprocess.Popen[str], pass_on: Callable[[str], None]) -> None:
    assert process.stderr is not None
    with process.stderr as lines:
        for line in lines:
            pass_on(line)


def end_with_supervisor() -> None:
    """For a program that a Program runs: one whose supervisor is killed ends cleanly too."""

    def wait_for_end() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        # Nobody else sees any more to what it has started.
        atexit.register(os.killpg, 0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_for_end, daemon=True).start()


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
