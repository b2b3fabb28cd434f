"""One export: its position, its losses, and its status."""

from __future__ import annotations

import pytest

from penstock.model.exporting import ExportState
from tests.broker.exports.workbench import Workbench, failure, interim, report, skip, to_http


def state(bench: Workbench) -> str:
    return bench.activity("s").state


# Position


def test_export_continues_behind_the_last_exported_message(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    assert bench.export("s").next_number == 0
    bench.commit(report(bench.plan_one(), settled_end=3))
    assert bench.export("s").next_number == 3


def test_export_begins_at_its_start_also_if_that_message_is_not_appended_yet(
    bench: Workbench,
) -> None:
    stream = bench.create("s", to_http(startSequenceNumber=7), 5)
    assert bench.plan() == []
    assert bench.outlook().needed_ends == ((stream, 8),)
    bench.append("s", 5)
    found = bench.plan_one()
    assert (found.first, found.end) == (7, 10)


def test_dropped_messages_are_passed_over(bench: Workbench) -> None:
    stream = bench.create("s", to_http(), 0, maxSize=4096, streamSegmentSize=1024)
    bench.append("s", 20, size=500)
    assert stream.log.oldest > 0
    assert bench.plan_one().first == stream.log.oldest


# Losses


def test_messages_dropped_before_their_export_are_counted(bench: Workbench) -> None:
    stream = bench.create("s", to_http(), 0, maxSize=4096, streamSegmentSize=1024)

    def lost() -> int:
        return bench.activity("s").lost_messages

    bench.append("s", 8, size=500)
    assert lost() == 0
    bench.append("s", 12, size=500)
    assert lost() == stream.log.oldest
    # Messages of a lease may arrive, and messages that have arrived are not lost.
    before = lost()
    found = bench.plan_one()
    bench.append("s", 2, size=500)
    bench.commit(report(found))
    bench.append("s", 6, size=500)
    assert lost() == before
    bench.append("s", 20, size=500)
    assert lost() == before + stream.log.oldest - found.end


def test_unreadable_messages_are_counted_and_logged(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    bench.commit(interim(found, settled_end=2, missing=1))
    bench.commit(report(found, first=2, missing=2))

    assert bench.activity("s").lost_messages == 3
    assert "stream 's', export 'e': messages that cannot be read are left out: 2" in caplog.text


def test_damage_that_a_task_has_found_is_known(bench: Workbench) -> None:
    stream = bench.create("s", to_http(), 5)
    (data,) = bench.store.root.glob("streams/*/*.data")
    with data.open("r+b") as file:
        file.write(b"!")

    bench.commit(report(bench.plan_one(), missing=1))

    assert [(each.first, each.end) for each in stream.log.damage.ranges()] == [(0, 1)]


# Progress


def test_progress_counts_exported_and_skipped_messages(bench: Workbench) -> None:
    bench.create("s", to_http(), 10)
    found = bench.plan_one()
    bench.commit(
        report(found, settled_end=6, exported_messages=5, exported_bytes=50, skipped=[skip(2)])
    )
    progress = bench.progress("s")
    assert (progress.last_exported, progress.last_time) == (5, bench.now)
    assert (progress.processed_messages, progress.exported_bytes) == (6, 50)
    assert progress.skipped_messages == 1
    assert progress.error_message == "a message was skipped; the last, 2: 2 is malformed"
    bench.wait(5)
    bench.commit(failure(bench.plan_one(), error="no way"))
    progress = bench.progress("s")
    assert (progress.last_exported, progress.last_time) == (5, bench.now)
    assert (progress.processed_messages, progress.error_message) == (6, "no way")
    bench.wait(5)
    bench.commit(report(bench.plan_one()))
    assert bench.progress("s").error_message == ""


def test_progress_of_interim_reports_adds_up(bench: Workbench) -> None:
    bench.create("s", to_http(), 10)
    found = bench.plan_one()
    bench.commit(
        interim(found, settled_end=4, exported_messages=3, exported_bytes=30, skipped=[skip(1)])
    )
    bench.commit(report(found, first=4, exported_messages=5, exported_bytes=50, skipped=[skip(8)]))
    progress = bench.progress("s")
    assert (progress.last_exported, progress.exported_bytes) == (9, 80)
    assert (progress.processed_messages, progress.skipped_messages) == (10, 2)


def test_arrived_messages_are_known_until_they_are_settled(bench: Workbench) -> None:
    bench.create("s", to_http(), 10)
    bench.commit(failure(bench.plan_one(), arrived=[2, 5]))
    bench.wait(1)
    found = bench.plan_one()
    assert found.arrived == [2, 5]
    bench.commit(report(found, settled_end=4, arrived=[5]))
    found = bench.plan_one()
    assert (found.first, found.arrived) == (4, [5])


# State


def test_state_follows_messages_and_leases(bench: Workbench) -> None:
    bench.create("s", to_http())
    assert state(bench) == ExportState.up_to_date
    bench.append("s", 5)
    assert state(bench) == ExportState.due
    found = bench.plan_one()
    assert state(bench) == ExportState.exporting
    commit = bench.begin_commit(interim(found, settled_end=2))
    assert state(bench) == ExportState.exporting
    bench.finish_commit(commit)
    assert state(bench) == ExportState.exporting
    bench.wait(10)
    assert state(bench) == ExportState.due
    bench.commit(report(found, first=2))
    assert state(bench) == ExportState.up_to_date


def test_state_of_an_incomplete_batch_is_waiting(bench: Workbench) -> None:
    bench.create("s", to_http(batchSize=4, batchIntervalMillis=60_000), 3)
    assert state(bench) == ExportState.waiting
    bench.append("s", 1)
    assert state(bench) == ExportState.due


def test_paused_export_is_paused_whatever_else_it_is(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.commit(failure(bench.plan_one()))
    bench.update("s", to_http(disabled=True))
    assert state(bench) == ExportState.paused


def test_failing_export_exports_again_as_soon_as_a_report_says_so(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.commit(failure(bench.plan_one()))
    assert state(bench) == ExportState.failing
    bench.wait(1)
    found = bench.plan_one()
    assert state(bench) == ExportState.failing
    bench.commit(interim(found))
    assert state(bench) == ExportState.failing
    bench.commit(interim(found, settled_end=1))
    assert state(bench) == ExportState.exporting
    bench.commit(failure(found, first=1))
    assert state(bench) == ExportState.failing


def test_status_has_the_time_of_the_oldest_pending_message(bench: Workbench) -> None:
    bench.create("s", to_http())
    assert bench.activity("s").waiting_since is None
    began = bench.now
    bench.append("s", 2)
    bench.wait(60)
    bench.append("s", 1)
    assert bench.activity("s").waiting_since == began
    bench.commit(report(bench.plan_one(), settled_end=2))
    assert bench.activity("s").waiting_since == bench.now
