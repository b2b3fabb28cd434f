"""Supervises programs: starts them, restarts them when they end, and stops them."""

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

# A program that runs this long is stable: the pauses before restarts begin with the first again.
_STABLE_SECONDS = 60.0
_FIRST_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 30.0
_POLL_SECONDS = 0.1
# The timeout for a clean end. Then the process is killed.
_STOP_SECONDS = 20.0
# The timeout for relaying the last lines of a process.
_RELAY_SECONDS = 5.0


class SupervisedProgram:
    """A program that is kept running as one process.

    It prints a line that begins with `ready` on standard output once it is ready.
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
        """`pass_on` receives each line that the program writes to standard error."""
        self.name = name
        self._command = command
        self._ready = ready
        self._environment = environment
        self._stop_seconds = stop_seconds
        self._pass_on = pass_on
        self._relay: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None
        # Not a SimpleQueue: in Python 3.11 its `get` ignores the timeout if a signal handler runs
        # longer than the timeout.
        self._ready_lines: queue.Queue[str] = queue.Queue()
        self._began = 0.0
        self._starts_at = 0.0
        self._pauses = delays(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)

    def start(self) -> None:
        # A new session: Ctrl-C reaches only the supervisor, which then stops the program. The pipe
        # to its standard input closes when the supervisor ends, even after a kill.
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
        """Reads all output: a full pipe would block the program."""
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if line.startswith(self._ready):
                    self._ready_lines.put(line.strip())
        self._ready_lines.put("")

    def wait_until_ready(self, is_over: threading.Event) -> str:
        """The ready line; empty if the program ended earlier, or if `is_over` is set."""
        while not is_over.is_set():
            with contextlib.suppress(queue.Empty):
                return self._ready_lines.get(timeout=_POLL_SECONDS)
        return ""

    def poll(self) -> str | None:
        """Restarts the program if it ended and its pause is over.

        Returns the event to report, if any: the ready line, an end, or a failed restart.
        """
        if self._process is None:
            return self._restart() if time.monotonic() >= self._starts_at else None
        code = self._process.poll()
        if code is None:
            with contextlib.suppress(queue.Empty):
                return self._ready_lines.get_nowait() or None
            return None
        if time.monotonic() - self._began > _STABLE_SECONDS:
            self._pauses = delays(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        self._clean_up(self._process)
        self._process = None
        return f"the {self.name} ended ({_describe(code)}); restarting it in {self._pause():.1f} s"

    def _restart(self) -> str | None:
        try:
            self.start()
        except OSError as error:
            # The executable is being replaced, or memory is short: the other programs keep running.
            return f"the {self.name} cannot be started ({error}); retrying in {self._pause():.1f} s"
        return None

    def _pause(self) -> float:
        pause = next(self._pauses)
        self._starts_at = time.monotonic() + pause
        return pause

    def stop(self) -> int:
        """Stops the program. Returns its exit code; 0 if it was not running."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.terminate()
        try:
            code = process.wait(self._stop_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self._clean_up(process)
        return code

    def _clean_up(self, process: subprocess.Popen[str]) -> None:
        """Kills the child processes of the program, and waits until its output is relayed."""
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
    """Ends this process cleanly when its supervisor ends, even if the supervisor was killed."""

    def wait_for_end() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        # No supervisor is left to kill its child processes.
        atexit.register(os.killpg, 0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_for_end, daemon=True).start()


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
