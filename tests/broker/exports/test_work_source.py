"""The states of a source of work, lease ids, repeated reports, and pauses after failures."""

from __future__ import annotations

import math
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from penstock.broker.exports.work_source import (
    MAX_PAUSE_SECONDS,
    Holder,
    Lease,
    LeaseId,
    backoff_seconds,
)
from tests.broker.exports.workbench import (
    Workbench,
    event,
    failure,
    interim,
    report,
    to_http,
    upload,
)


def retry_in(bench: Workbench) -> float:
    return bench.export("s").retry_in(bench.seconds)


# States


def test_lease_passes_through_all_states(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    export = bench.export("s")
    assert (export.lease, export.is_storing, export.free_at()) == (None, False, -math.inf)

    found = bench.plan_one()
    assert export.lease == Lease(
        found.lease, Holder("p", "t"), 0, 5, bench.seconds + 10, charged=75.0
    )
    assert export.is_leased(bench.seconds)
    assert not export.is_leased(bench.seconds + 10)
    assert export.free_at() == bench.seconds + 10

    commit = bench.begin_commit(interim(found, settled_end=2))
    assert export.is_storing
    assert export.is_leased(bench.seconds + 1000)
    assert export.free_at() == math.inf

    bench.finish_commit(commit)
    assert not export.is_storing
    assert (export.lease.id, export.lease.first) == (found.lease, 2)

    bench.commit(report(found, first=2))
    assert export.lease is None
    assert export.free_at() == bench.seconds


def test_lease_is_not_taken_while_a_report_is_stored(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    bench.begin_commit(report(found))
    lease = Lease("l", Holder("p", "b"), 0, 5, math.inf)
    with pytest.raises(AssertionError):
        bench.export("s").take_lease(lease, 1, bench.seconds)


def test_revoked_lease_accepts_no_reports(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    given = interim(found, settled_end=1)
    bench.commit(given)
    bench.export("s").revoke_lease()
    assert bench.accepted(given) == bench.accepted(report(found, first=1)) == []
    assert bench.request_plan(holding=[found.lease], max_slices=0).lost == [found.lease]
    assert bench.plan_one().first == 1


@pytest.mark.parametrize("is_final", [True, False])
def test_lease_that_is_revoked_while_its_report_is_stored_stays_revoked(
    bench: Workbench, is_final: bool
) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    commit = bench.begin_commit(report(found, settled_end=2, is_final=is_final))
    bench.export("s").revoke_lease()
    bench.finish_commit(commit)
    assert bench.export("s").lease is None
    assert bench.commit(report(found, first=2)) == 0
    assert bench.plan_one().first == 2


@pytest.mark.parametrize("is_final", [True, False])
def test_final_reports_and_errors_end_the_lease(bench: Workbench, is_final: bool) -> None:
    bench.create("s", to_http(), 5)
    commit = bench.begin_commit(report(bench.plan_one(), settled_end=1, is_final=is_final))
    (accepted,) = commit.batch.accepted
    assert accepted.ends_lease is is_final
    bench.cancel_commit(commit)
    (failed,) = bench.begin_commit(failure(bench.plan_one(), is_final=is_final)).batch.accepted
    assert failed.ends_lease


# Lease ids


@pytest.mark.parametrize("name", ["abandoned-3", "0f3a/http", "0f3a/s3_task_executor", "a/1-2/b"])
def test_lease_id_names_its_source_and_its_messages(name: str) -> None:
    lease_id = LeaseId(name, 5, 1 << 62, "1f-2a")
    assert LeaseId.parse(str(lease_id)) == lease_id


@pytest.mark.parametrize(
    "lease_id",
    ["", "e", "e/0-5", "/0-5/1", "e/0-/1", "e/-5/1", "e/0-5/", "e/0-5/x", f"e/{'9' * 5000}-5/1"],
)
def test_malformed_lease_id_is_not_parsed(lease_id: str) -> None:
    assert LeaseId.parse(lease_id) is None


# Repeated reports


@pytest.mark.parametrize("is_final", [True, False])
def test_last_report_is_accepted_again_and_changes_nothing(
    bench: Workbench, is_final: bool
) -> None:
    bench.create_tasks("s", 3)
    found = bench.plan_file()
    given = report(found, settled_end=1, uploads=[upload(1)], events=[event(0)], is_final=is_final)
    assert bench.accepted(given) == bench.accepted(given) == [found.lease]
    assert len(bench.written_statuses()) == 1
    assert bench.progress("s").processed_messages == 1
    # Another report is not a repeated one.
    other = report(found, settled_end=1, events=[event(1)], is_final=is_final)
    assert bench.accepted(other) == []


def test_report_is_not_accepted_again_after_the_next_report(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    first, second = interim(found, settled_end=1), interim(found, first=1, settled_end=2)
    bench.commit(first)
    bench.commit(second)
    assert bench.accepted(first) == []
    assert bench.accepted(second) == [found.lease]


def test_interim_report_is_not_accepted_again_when_the_lease_is_lost(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one(task="a")
    given = interim(found, settled_end=1)
    bench.commit(given)
    bench.wait(10)
    assert bench.accepted(given) == [found.lease]
    bench.plan_one(task="b")
    assert bench.accepted(given) == []


def test_final_report_is_accepted_again_when_another_task_has_the_next_lease(
    bench: Workbench,
) -> None:
    bench.create("s", to_http(), 5)
    found = bench.plan_one(task="a")
    given = report(found, settled_end=2)
    bench.commit(given)
    other = bench.plan_one(task="b")
    assert bench.accepted(given) == [found.lease]
    assert bench.accepted(report(other)) == [other.lease]
    assert bench.accepted(given) == []


# Pauses


def test_failures_are_followed_by_growing_pauses_until_a_success(bench: Workbench) -> None:
    bench.create("s", to_http(), 3)
    waited = []
    for failures in range(1, 5):
        bench.commit(failure(bench.plan_one()))
        activity = bench.activity("s")
        assert activity.failures == failures
        assert activity.retry_in_millis is not None
        assert bench.plan() == []
        waited.append(activity.retry_in_millis)
        bench.wait(activity.retry_in_millis / 1000 + 0.01)
    assert waited == sorted(waited)
    assert waited[-1] > 2 * waited[0]
    bench.commit(report(bench.plan_one()))
    activity = bench.activity("s")
    assert (activity.failures, activity.retry_in_millis) == (0, None)


@pytest.mark.parametrize("reports_progress_first", [False, True])
def test_pauses_do_not_grow_while_messages_arrive(
    bench: Workbench, reports_progress_first: bool
) -> None:
    bench.create("s", to_http(), 10)
    for end in range(1, 6):
        found = bench.plan_one()
        progress: dict[str, Any] = {"settled_end": end, "exported_messages": 1}
        if reports_progress_first:
            bench.commit(interim(found, **progress))
            bench.commit(interim(found, first=end))
            bench.commit(failure(found, first=end))
        else:
            bench.commit(failure(found, **progress))
        assert bench.export("s").failures == 1
        bench.wait(0.5)


def test_interim_report_neither_pauses_nor_ends_an_outage(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.commit(failure(bench.plan_one()))
    bench.wait(1)
    found = bench.plan_one()
    bench.commit(interim(found, settled_end=1, pause_millis=60_000))
    assert (bench.export("s").failures, retry_in(bench)) == (1, 0.0)
    bench.commit(report(found, first=1))
    assert bench.export("s").failures == 0


def test_retry_waits_for_the_pause_that_the_destination_requests(bench: Workbench) -> None:
    bench.create("s", to_http(), 3)
    bench.commit(report(bench.plan_one(), settled_end=1, pause_millis=20_000))
    bench.wait(19.9)
    assert bench.plan() == []
    bench.wait(0.2)
    assert bench.plan_one().first == 1


def test_pause_is_five_minutes_at_most(bench: Workbench) -> None:
    bench.create("s", to_http(), 1)
    bench.commit(failure(bench.plan_one(), pause_millis=86_400_000))
    bench.wait(299)
    assert bench.plan() == []
    bench.wait(1)
    assert bench.plan_one().first == 0


def test_changed_configuration_is_retried_at_once(bench: Workbench) -> None:
    bench.create("s", to_http(), 1)
    bench.commit(failure(bench.plan_one(), pause_millis=60_000))
    assert bench.plan() == []
    bench.update("s", to_http(uri="http://127.0.0.1/corrected"))
    assert bench.plan_one().config["uri"] == "http://127.0.0.1/corrected"
    assert bench.export("s").failures == 0


def test_export_with_an_error_is_retried_after_a_restart(bench: Workbench) -> None:
    bench.create("s", to_http(), 5)
    bench.commit(failure(bench.plan_one()))
    bench.restart()
    assert bench.plan_one().first == 0


def test_pause_after_failures_doubles_up_to_five_minutes() -> None:
    longest = [backoff_seconds(failures, 0.999999) for failures in range(1, 13)]
    assert longest == pytest.approx([0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300], rel=1e-4)
    assert backoff_seconds(10_000, 0.5) <= MAX_PAUSE_SECONDS == 300


@hypothesis.given(failures=st.integers(1, 50), jitter=st.floats(0, 1, exclude_max=True))
def test_pause_is_random_within_a_quarter(failures: int, jitter: float) -> None:
    shortest = backoff_seconds(failures, 0.0)
    assert shortest <= backoff_seconds(failures, jitter) <= shortest / 0.75 <= 300
