"""Log lines: one for each event, with any text."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys

import pytest

from penstock.broker.logs import HumanFormatter, JsonFormatter, LineRelay, set_up_logs
from penstock.settings import LogFormat, LogLevel
from tests.support import TIMEOUT_S, clean_environment

HOSTILE = "a\nb\r\nc \x1b[31m ü \u2028 \0"


def record(message: str, *arguments: object, level: int = logging.INFO) -> logging.LogRecord:
    made = logging.LogRecord("penstock.broker.x", level, "f", 1, message, arguments, None)
    made.created = 1_700_000_000.25
    return made


def test_text_line_has_time_level_and_module() -> None:
    line = HumanFormatter().format(record("stream %r created", "s"))

    assert line == "2023-11-14T22:13:20.250Z INFO  broker.x: stream 's' created"


def test_json_line_has_time_level_and_logger() -> None:
    line = JsonFormatter().format(record("stream %r created", "s"))

    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "INFO",
        "logger": "penstock.broker.x",
        "message": "stream 's' created",
    }


@pytest.mark.parametrize("formatter", [HumanFormatter(), JsonFormatter()])
def test_newlines_in_a_message_cannot_forge_a_line(formatter: logging.Formatter) -> None:
    line = formatter.format(record("SDK %s", HOSTILE))

    assert "\n" not in line
    assert "\r" not in line


def test_traceback_is_part_of_its_line() -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        failed = record("it failed")
        failed.exc_info = (ValueError, error, error.__traceback__)

    for formatter in (HumanFormatter(), JsonFormatter()):
        failed.exc_text = None
        line = formatter.format(failed)
        assert "ValueError: why" in line
        assert "\n" not in line


def test_handlers_without_a_stream_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, replaced = logging.NullHandler(), logging.StreamHandler()
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [replaced, kept])
    monkeypatch.setattr(root, "level", root.level)
    # Other programs in this process use the usual names of the levels.
    monkeypatch.setattr(logging, "addLevelName", lambda *_: None)

    set_up_logs(LogLevel.INFO, LogFormat.JSON)

    made, other = root.handlers
    assert other is kept
    assert made is not replaced
    assert isinstance(made.formatter, JsonFormatter)


def test_relay_passes_lines_in_our_format_unchanged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    line = "2026-01-02T03:04:05.678Z WARN  store.log: text"
    for log_format, known in (
        (LogFormat.HUMAN, line),
        (LogFormat.JSON, '{"time": "2026-01-02T03:04:05.678Z", "level": "INFO", "message": "x"}'),
    ):
        file = io.StringIO()
        LineRelay("pipeline", log_format, file).pass_on(f"{known}\n")
        assert file.getvalue() == f"{known}\n"
    assert caplog.records == []


def test_relay_logs_other_lines(caplog: pytest.LogCaptureFixture) -> None:
    file = io.StringIO()
    relay = LineRelay("pipeline", LogFormat.HUMAN, file)
    relay.pass_on("WARNING: Using incubator modules\n")
    relay.pass_on("\n")
    assert file.getvalue() == ""
    assert [(each.name, each.levelname, each.getMessage()) for each in caplog.records] == [
        ("penstock.pipeline", "WARNING", "WARNING: Using incubator modules")
    ]


def test_relay_survives_a_closed_file() -> None:
    file = io.StringIO()
    file.close()
    LineRelay("x", LogFormat.HUMAN, file).pass_on("2026-01-02T03:04:05.678Z WARN  a: text\n")


PROGRAM = """
import gc, sys, threading, warnings
from penstock.broker.logs import log_uncaught, set_up_worker_logs

set_up_worker_logs()
log_uncaught()
warnings.warn("deprecated")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()

class Bad:
    def __del__(self):
        raise ValueError("in __del__")

Bad()
gc.collect()
raise RuntimeError("at the end")
"""


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_warnings_and_uncaught_exceptions_have_time_and_level(log_format: LogFormat) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=clean_environment(PENSTOCK_LOG_FORMAT=log_format.value),
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    lines = finished.stderr.splitlines()
    assert finished.returncode == 1
    assert len(lines) == 4
    for line, text in zip(
        lines, ("deprecated", "ZeroDivisionError", "in __del__", "at the end"), strict=True
    ):
        assert text in line
        file = io.StringIO()
        LineRelay("x", log_format, file).pass_on(line)
        assert file.getvalue() == f"{line}\n"
