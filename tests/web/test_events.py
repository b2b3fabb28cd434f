"""The latest log records of a broker."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from penstock.web.events import Events
from tests.support import running


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def logger(events: Events) -> Iterator[logging.Logger]:
    """A logger whose records reach only `events`."""
    logger = logging.getLogger("penstock.broker.of_this_test")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(events)
    yield logger
    logger.removeHandler(events)


def test_event_has_level_source_message_and_time(events: Events, logger: logging.Logger) -> None:
    logger.warning("stream %r is %s", "s", "full")

    (event,) = events.since(0)
    assert (event.id, event.level, event.source) == (1, "WARN", "broker.of_this_test")
    assert event.message == "stream 's' is full"
    assert event.time > 1_700_000_000_000


@pytest.mark.parametrize(
    ("number", "level"),
    [
        (logging.INFO, "INFO"),
        (logging.INFO + 1, "INFO"),
        (logging.WARNING, "WARN"),
        (logging.ERROR, "ERROR"),
        (logging.CRITICAL, "ERROR"),
    ],
)
def test_levels_are_mapped_to_info_warn_and_error(
    events: Events, logger: logging.Logger, number: int, level: str
) -> None:
    logger.log(number, "x")

    assert [event.level for event in events.since(0)] == [level]
    assert events.counts == {"INFO": 0, "WARN": 0, "ERROR": 0} | {level: 1}


def test_debug_records_are_ignored(events: Events, logger: logging.Logger) -> None:
    logger.debug("x")

    assert events.since(0) == []
    assert sum(events.counts.values()) == 0


def test_latest_500_events_are_kept_and_all_are_counted(
    events: Events, logger: logging.Logger
) -> None:
    for number in range(1, 701):
        logger.info("%d", number)

    kept = events.since(0)
    assert [event.id for event in kept] == list(range(201, 701))
    assert [event.message for event in kept] == [str(event.id) for event in kept]
    assert events.counts["INFO"] == 700


def test_since_returns_later_events(events: Events, logger: logging.Logger) -> None:
    for number in range(5):
        logger.info("%d", number)

    assert [event.id for event in events.since(3)] == [4, 5]
    assert events.since(5) == events.since(2**70) == []


def test_long_message_is_cut(events: Events, logger: logging.Logger) -> None:
    logger.info("%s", "x" * 100_000)

    assert len(events.since(0)[0].message) == 1000


def test_record_that_cannot_be_formatted_is_skipped(
    events: Events, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[logging.LogRecord] = []
    monkeypatch.setattr(events, "handleError", failed.append)

    events.handle(logging.makeLogRecord({"levelno": logging.INFO, "msg": "%d of %d", "args": (1,)}))
    logger.info("another")

    assert [event.message for event in events.since(0)] == ["another"]
    assert len(failed) == 1


def test_threads_can_log_while_events_are_read(events: Events, logger: logging.Logger) -> None:
    def log() -> None:
        for _ in range(1000):
            logger.info("x")

    with running(log), running(log):
        while len(kept := events.since(0)) < 500 or kept[-1].id < 2000:
            assert [event.id for event in kept] == sorted({event.id for event in kept})

    assert events.counts["INFO"] == 2000
