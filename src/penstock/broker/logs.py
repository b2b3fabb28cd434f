"""Logs: one line for each event on standard error, as text or JSON.

Every line has a time and a level. Warnings and uncaught exceptions of Python are logged, and lines
of programs that a supervisor runs pass through a `LineRelay`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

from penstock.settings import LogFormat, LogLevel

_LEVELS = {
    LogLevel.TRACE: 5,
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARN: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}


# Passes the format to processes that inherit only the environment, such as Spark workers.
_FORMAT_VARIABLE = "PENSTOCK_LOG_FORMAT"
_HUMAN_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ +\S+: ")
_JSON_LINE = re.compile(r'\{"time": "[^"]+", "level": "[A-Z]+", ')

logger = logging.getLogger("penstock")


# Not by `logging.addLevelName`, which also changes the names for other code in this process.
_LEVEL_NAMES = {number: level.value for level, number in _LEVELS.items()}


def _level(record: logging.LogRecord) -> str:
    return _LEVEL_NAMES.get(record.levelno, record.levelname)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class HumanFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        name = record.name.removeprefix("penstock.")
        line = f"{_time(record)} {_level(record):<5} {name}: {text}"
        # Names of clients and texts of errors may have line breaks, which must not forge a line.
        return line.replace("\n", " | ").replace("\r", " ")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "time": _time(record),
                "level": _level(record),
                "logger": record.name,
                "message": super().format(record),
            }
        )


def set_up_logs(level: LogLevel, log_format: LogFormat) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else HumanFormatter())
    root = logging.getLogger()
    # Keeps handlers that do not write to a stream, for example the handler of the dashboard.
    others = [each for each in root.handlers if not isinstance(each, logging.StreamHandler)]
    root.handlers[:] = [handler, *others]
    root.setLevel(_LEVELS[level])


def log_uncaught() -> None:
    """Logs warnings and uncaught exceptions of this process."""
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_thread
    sys.unraisablehook = _log_unraisable


def set_up_worker_logs(environment: Mapping[str, str] = os.environ) -> None:
    """Sets up the logs of a process that Spark starts, unless it has handlers."""
    if not logging.getLogger().handlers:
        is_json = environment.get(_FORMAT_VARIABLE, "").lower() == LogFormat.JSON.value.lower()
        set_up_logs(LogLevel.WARN, LogFormat.JSON if is_json else LogFormat.HUMAN)
        log_uncaught()


def pass_format_on(log_format: LogFormat) -> None:
    """Sets the log format of processes that this one starts."""
    os.environ[_FORMAT_VARIABLE] = log_format.value


def _log_uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        logger.critical("uncaught exception", exc_info=(kind, error, traceback))


def _log_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
        name = arguments.thread.name if arguments.thread is not None else "unknown"
        logger.error("uncaught exception in thread %s", name, exc_info=arguments.exc_value)


def _log_unraisable(arguments: Any) -> None:
    where = arguments.err_msg or "exception ignored in"
    logger.error("%s %r", where, arguments.object, exc_info=arguments.exc_value)


class LineRelay:
    """Relays the standard error of another program.

    Lines in our format pass unchanged. All others, for example from Java, become log records.
    """

    def __init__(self, name: str, log_format: LogFormat, file: TextIO | None = None) -> None:
        self._logger = logging.getLogger(f"penstock.{name}")
        self._line = _JSON_LINE if log_format is LogFormat.JSON else _HUMAN_LINE
        self._file = file or sys.stderr

    def pass_on(self, line: str) -> None:
        line = line.rstrip("\r\n")
        if not line.strip():
            return
        if self._line.match(line) is None:
            self._logger.warning("%s", line)
            return
        # A closed terminal does not stop the program.
        with suppress(OSError, ValueError):
            self._file.write(f"{line}\n")
            self._file.flush()
