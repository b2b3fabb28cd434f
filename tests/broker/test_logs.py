"""Log lines: one an event, whatever is in it."""

from __future__ import annotations

import json
import logging

import pytest

from penstock.broker.logs import HumanFormatter, JsonFormatter, set_up_logs
from penstock.broker.settings import LogFormat, LogLevel

HOSTILE = "a\nb\r\nc \x1b[31m ü \u2028 \0"


def record(message: str, *arguments: object, level: int = logging.INFO) -> logging.LogRecord:
    made = logging.LogRecord("penstock.broker.x", level, "f", 1, message, arguments, None)
    made.created = 1_700_000_000.25
    return made


def test_a_line_for_people_has_the_time_the_level_and_the_module() -> None:
    line = HumanFormatter().format(record("stream %r created", "s"))

    assert line == "2023-11-14T22:13:20.250Z INFO  broker.x: stream 's' created"


def test_a_line_for_programs_has_the_same_as_json() -> None:
    line = JsonFormatter().format(record("stream %r created", "s"))

    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "INFO",
        "logger": "penstock.broker.x",
        "message": "stream 's' created",
    }


@pytest.mark.parametrize("formatter", [HumanFormatter(), JsonFormatter()])
def test_nobody_forges_a_line(formatter: logging.Formatter) -> None:
    line = formatter.format(record("SDK %s", HOSTILE))

    assert "\n" not in line
    assert "\r" not in line


def test_a_traceback_stays_on_its_line() -> None:
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


def test_handlers_that_are_not_for_people_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, replaced = logging.NullHandler(), logging.StreamHandler()
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [replaced, kept])
    monkeypatch.setattr(root, "level", root.level)
    # Others who run in this process know the levels by their usual names.
    monkeypatch.setattr(logging, "addLevelName", lambda *_: None)

    set_up_logs(LogLevel.INFO, LogFormat.JSON)

    made, other = root.handlers
    assert other is kept
    assert made is not replaced
    assert isinstance(made.formatter, JsonFormatter)
