"""Logs: one line an event, for people or as JSON, on standard error."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from penstock.broker.settings import LogFormat, LogLevel

_LEVELS = {
    LogLevel.TRACE: 5,
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARN: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class HumanFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        name = record.name.removeprefix("penstock.")
        line = f"{_time(record)} {record.levelname:<5} {name}: {text}"
        # A client chooses names and a file system errors: neither may forge a line.
        return line.replace("\n", " | ").replace("\r", " ")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "time": _time(record),
                "level": record.levelname,
                "logger": record.name,
                "message": super().format(record),
            }
        )


def set_up_logs(level: LogLevel, log_format: LogFormat) -> None:
    logging.addLevelName(5, "TRACE")
    logging.addLevelName(logging.WARNING, "WARN")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else HumanFormatter())
    logger = logging.getLogger()
    # Those that are for programs stay.
    others = [each for each in logger.handlers if not isinstance(each, logging.StreamHandler)]
    logger.handlers[:] = [handler, *others]
    logger.setLevel(_LEVELS[level])
