"""Accepted reports, which are stored together and answered."""

from __future__ import annotations

from penstock.broker.exports.settlement import Settlement
from tests.broker.exports.workbench import (
    Workbench,
    event,
    failure,
    interim,
    report,
    skip,
    to_http,
    upload,
)


def test_settlement_of_nothing_changes_nothing() -> None:
    settlement = Settlement()
    assert (settlement.accepted, settlement.progress()) == ([], {})
    assert settlement.uploads() == ([], [])
    assert settlement.is_final
    assert not settlement.has_skipped


def test_leases_of_accepted_reports_are_answered(bench: Workbench) -> None:
    bench.create_tasks("a", 1)
    bench.create_tasks("b", 1)
    first, second = bench.plan()
    bench.delete("b")
    assert bench.accepted(report(first, abandoned=[upload(0)]), report(second)) == [first.lease]
    abort = bench.plan_abort()
    assert bench.accepted(report(abort)) == [abort.lease]


def test_repeated_reports_are_answered_with_the_others(bench: Workbench) -> None:
    for name in "ab":
        bench.create(name, to_http(), 1)
    first, second = bench.plan()
    bench.commit(report(first))
    settlement = bench.begin_commit(report(first), report(second)).settlement
    assert [each.lease.id for each in settlement.settled] == [second.lease]
    assert settlement.repeated == [first.lease]
    assert settlement.accepted == [second.lease, first.lease]


def test_progress_of_all_reports_is_stored_together(bench: Workbench) -> None:
    exports = {"http": [{"identifier": name, "uri": "http://127.0.0.1/"} for name in "ab"]}
    bench.create("s", exports, 4)
    bench.create("t", to_http(), 4)
    settlement = bench.begin_commit(*map(report, bench.plan())).settlement
    stored = {name: len(progress) for name, progress in settlement.progress().items()}
    assert stored == {"s": 2, "t": 1}


def test_uploads_of_all_reports_are_stored_together(bench: Workbench) -> None:
    for name in "ab":
        bench.create_tasks(name, 2)
    first, second = bench.plan()
    bench.commit(interim(first, uploads=[upload(0, "ends")]))
    begun = [upload(1, "begins")]
    given = report(first, settled_end=1, uploads=begun), failure(second, abandoned=[upload(0, "x")])
    change = bench.begin_commit(*given).settlement.uploads()
    assert [(each.upload.upload_id, each.is_abandoned) for each in change.stored] == [
        ("begins", False),
        ("x", True),
    ]
    assert len(change.removed) == 1


def test_settlement_with_an_interim_report_is_not_final(bench: Workbench) -> None:
    for name in "ab":
        bench.create(name, to_http(), 1)
    first, second = bench.plan()
    assert not bench.begin_commit(report(first), interim(second)).settlement.is_final


def test_interim_report_whose_messages_cannot_be_kept_loses_its_lease(bench: Workbench) -> None:
    """The task stops, and the messages are delivered again."""
    bench._dead_letter_stream = "letters"
    bench.restart()
    bench.create("letters", {}, maxSize=1024, strategyOnFull=0)
    bench.append("letters", 1, size=1000)
    bench.create_tasks("s", 5)
    found = bench.plan_file(task="a")
    given = interim(found, settled_end=3, skipped=[skip(1)], events=[event(0), event(2)])
    assert bench.accepted(given) == bench.accepted(given) == []
    assert bench.progress("s").last_exported == 0
    assert bench.export("s").failures == 1
    assert bench.ask(task="a", holding=[found.lease], max_slices=0).lost == [found.lease]
    bench.wait(1)
    again = bench.plan_file(task="b")
    assert (again.first, again.arrived) == (1, [2])


def test_final_report_whose_messages_cannot_be_kept_is_accepted(bench: Workbench) -> None:
    bench._dead_letter_stream = "letters"
    bench.restart()
    bench.create("letters", {}, maxSize=1024, strategyOnFull=0)
    bench.append("letters", 1, size=1000)
    bench.create("s", to_http(), 5)
    found = bench.plan_one()
    commit = bench.begin_commit(report(found, skipped=[skip(1)]))
    assert not commit.settlement.has_skipped
    assert commit.settlement.accepted == [found.lease]
