"""The dead-letter stream stores skipped messages; an unstored message is not skipped."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.model.exporting import DeliveryReport
from penstock.store.log import FileLog
from penstock.store.record import data_path
from tests.broker.exports.workbench import Workbench, interim, report, skip, to_http


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    bench = Workbench(tmp_path, dead_letter_stream="letters")
    yield bench
    bench.close()


def letters(bench: Workbench) -> list[dict[str, Any]]:
    log = bench.streams.find("letters").log
    payloads = [log.read(n, n + 1, 1).payloads[0] for n in range(log.oldest, log.end)]
    return [json.loads(payload) for payload in payloads]


def keep(bench: Workbench, *numbers: int, **fields: Any) -> DeliveryReport:
    """The accepted report about the first slice, in which these messages were skipped."""
    skipped = [skip(number) for number in numbers]
    commit = bench.begin_commit(report(bench.plan_one(), skipped=skipped, **fields))
    (accepted,) = commit.batch.accepted
    return accepted.report


def test_letter_has_the_message_and_the_reason(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    began = bench.now
    bench.wait(3)
    kept = keep(bench, 2)
    assert kept.settled_end == 5
    (letter,) = letters(bench)
    assert base64.b64decode(letter.pop("payload")) == b"x" * 10
    assert letter == {
        "streamName": "s",
        "sequenceNumber": 2,
        "ingestTime": began,
        "exportIdentifier": "e",
        "reason": "2 is malformed",
        "time": bench.now,
    }


def test_stream_is_created_when_needed_and_overwrites_its_oldest(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.commit(report(bench.plan_one(), settled_end=1))
    assert bench.streams.names() == ["s"]
    keep(bench, 2)
    assert bench.streams.names() == ["letters", "s"]
    assert bench.streams.find("letters").definition.strategy_on_full.name == "OverwriteOldestData"


def test_message_that_cannot_be_stored_is_not_skipped(bench: Workbench) -> None:
    bench.create("letters", {}, maxSize=1024, strategyOnFull=0)
    bench.append("letters", 1, size=700)
    bench.create("s", to_http(), 8)
    # In the order in which they were found: the second does not fit, so no later one is stored.
    kept = keep(bench, 5, 3, 1, 6, settled_end=6, arrived=[6, 7])
    assert [skipped.sequence_number for skipped in kept.skipped] == [5]
    assert kept.settled_end == 1
    # Messages that arrived after the first unstored letter are not sent again.
    assert kept.arrived == [2, 4, 5, 7]
    assert "cannot append to dead-letter stream 'letters': " in kept.error
    assert "is full" in kept.error


def test_export_waits_until_letters_can_be_stored(bench: Workbench) -> None:
    bench.create("letters", {}, maxSize=1024, strategyOnFull=0)
    bench.append("letters", 1, size=1000)
    bench.create("s", to_http(), 3)
    bench.commit(report(bench.plan_one(), skipped=[skip(1)]))
    assert bench.progress("s").last_exported == 0
    assert "is full" in bench.progress("s").error_message
    bench.delete("letters")
    bench.wait(1)
    bench.commit(report(bench.plan_one(), skipped=[skip(1)]))
    assert bench.progress("s").last_exported == 2
    assert [letter["sequenceNumber"] for letter in letters(bench)] == [1]


def test_dropped_messages_are_not_stored_as_letters(bench: Workbench) -> None:
    stream = bench.create("s", to_http(), maxSize=4096, streamSegmentSize=1024)
    bench.append("s", 4, size=500)
    found = bench.plan_one()
    bench.append("s", 8, size=500)
    assert stream.log.oldest > 1
    bench.commit(report(found, skipped=[skip(1)]))
    assert bench.progress("s").last_exported == 3
    assert "letters" not in bench.streams.names()


def test_damaged_message_does_not_block_an_export(bench: Workbench) -> None:
    stream = bench.create("s", to_http(), 3)
    assert isinstance(stream.log, FileLog)
    data_path(bench.store.root / "streams" / stream.stored.id, 0).write_bytes(b"y" * 30)
    assert bench.commit(report(bench.plan_one(), skipped=[skip(1)])) == 1
    assert bench.progress("s").last_exported == 2


def test_exports_of_the_dead_letter_stream_make_no_letters(bench: Workbench) -> None:
    bench.create("letters", to_http(), 3)
    assert keep(bench, 1).settled_end == 3
    assert bench.streams.find("letters").log.end == 3


@pytest.mark.parametrize(
    "prepare",
    [lambda _: None, lambda bench: bench.create("letters", {}, 1)],
    ids=["before there are any", "later"],
)
def test_letters_can_be_synced_at_any_time(
    bench: Workbench, prepare: Callable[[Workbench], object]
) -> None:
    prepare(bench)
    bench.dead_letters.sync()()


def test_without_a_dead_letter_stream_skipped_messages_are_only_counted(tmp_path: Path) -> None:
    bench = Workbench(tmp_path / "other")
    bench.create("s", to_http(), 3)
    assert keep(bench, 1).settled_end == 3
    bench.dead_letters.sync()()
    assert bench.streams.names() == ["s"]
    bench.close()


def test_export_waits_while_the_stream_cannot_be_created(bench: Workbench) -> None:
    bench.create("s", to_http(), 3)
    connection = bench.store.catalog._connection
    connection.execute(
        "CREATE TEMP TRIGGER broken BEFORE INSERT ON stream BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    bench.commit(report(bench.plan_one(), skipped=[skip(1)]))
    assert bench.progress("s").last_exported == 0
    assert "the disk of the server failed: no" in bench.progress("s").error_message
    connection.execute("DROP TRIGGER broken")
    bench.wait(1)
    bench.commit(report(bench.plan_one(), skipped=[skip(1)]))
    assert bench.progress("s").last_exported == 2
    assert [letter["sequenceNumber"] for letter in letters(bench)] == [1]


def test_letters_of_interim_reports_are_stored_once(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    given = interim(found, settled_end=3, skipped=[skip(1)])
    for _ in range(2):
        assert bench.accepted(given) == [found.lease]
    bench.commit(report(found, first=3, skipped=[skip(4)]))
    assert [letter["sequenceNumber"] for letter in letters(bench)] == [1, 4]
    assert bench.progress("s").skipped_messages == 2
