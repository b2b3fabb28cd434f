"""Pipelines and their tasks as the dashboard shows them, on a clock that tests set."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.exports.pipelines import FinishedDelivery, Pipeline, Pipelines, PipelineTask
from penstock.broker.exports.work_source import Holder
from penstock.model.exporting import (
    AnyWork,
    DeliveryReport,
    MessageSlice,
    PipelineDescription,
    UploadAbort,
)
from tests.broker.exports.workbench import upload

START = 1_700_000_000_000
ABOUT = PipelineDescription(started=START, spark_version="4.1.0", master="local[4]")


def messages(lease: str = "l", first: int = 0, end: int = 30) -> MessageSlice:
    return MessageSlice(
        lease=lease,
        stream="s",
        identifier="e",
        stream_id="i",
        kind="http",
        config={},
        first=first,
        end=end,
        arrived=[],
        has_files=True,
        segments=[],
    )


def abort(lease: str = "l") -> UploadAbort:
    return UploadAbort(lease=lease, stream="s", identifier="e", upload=upload(7))


class Bench:
    def __init__(self) -> None:
        self.seconds = 100.0
        self.pipelines = Pipelines(lambda: self.seconds, lambda: self.now)

    @property
    def now(self) -> int:
        return START + round((self.seconds - 100) * 1000)

    def request_plan(
        self,
        *holding: str,
        name: str = "p",
        task: str = "t",
        about: PipelineDescription | None = None,
    ) -> None:
        self.pipelines.note_request(Holder(name, task), holding, about)

    def give(self, *work: AnyWork, name: str = "p", task: str = "t") -> None:
        self.pipelines.note_work(Holder(name, task), work)

    def report(self, lease: str = "l", *, task: str = "t", **fields: Any) -> None:
        report = DeliveryReport(lease=lease, stream="s", identifier="e", **fields)
        self.pipelines.note_report(Holder("p", task), report)

    def leave(self, name: str = "p", task: str = "t") -> None:
        self.pipelines.note_disconnect(Holder(name, task))

    @property
    def names(self) -> list[str]:
        return [pipeline.name for pipeline in self.pipelines]

    @property
    def only(self) -> Pipeline:
        (pipeline,) = self.pipelines
        return pipeline

    @property
    def task(self) -> PipelineTask:
        (task,) = self.only.tasks.values()
        return task

    @property
    def deliveries(self) -> list[FinishedDelivery]:
        return list(self.pipelines.deliveries)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Deliveries


def test_holder_without_a_request_is_unknown(bench: Bench) -> None:
    bench.leave("unknown")
    bench.give(messages())
    bench.report()
    assert (bench.names, bench.deliveries) == ([], [])
    assert bench.pipelines.count_tasks("p") == 0


def test_delivery_lasts_from_the_plan_to_the_final_report(bench: Bench) -> None:
    bench.request_plan()
    bench.seconds += 7
    bench.give(messages())
    (assignment,) = bench.task.assignments.values()
    assert (assignment.kind, assignment.messages, assignment.started) == ("http", 30, START + 7000)
    bench.seconds += 1.5
    bench.report(exported_messages=30)

    holder = Holder("p", "t")
    lease = assignment.work.lease
    delivery = FinishedDelivery(holder, lease, "http", "s", "e", 30, START + 7000, 1.5, "")
    assert bench.deliveries == [delivery]
    assert (bench.task.deliveries, bench.task.messages) == (1, 30)
    assert bench.task.assignments == {}
    durations = bench.pipelines.durations["http"].snapshot()
    assert (sum(durations.counts), durations.sum) == (1, 1.5)


def test_interim_report_counts_messages_and_continues_the_delivery(bench: Bench) -> None:
    bench.request_plan()
    bench.give(messages())
    bench.report(exported_messages=20, is_final=False)
    assert (bench.task.deliveries, bench.task.messages) == (0, 20)
    assert list(bench.task.assignments) == ["l"]
    bench.report(exported_messages=10, error="it is down")
    assert bench.task.messages == 30
    assert [delivery.error for delivery in bench.deliveries] == ["it is down"]


def test_report_about_an_unknown_lease_counts_messages_only(bench: Bench) -> None:
    """This happens after a restart of the broker."""
    bench.request_plan("l")
    bench.report(exported_messages=20)
    assert (bench.task.deliveries, bench.task.messages) == (0, 20)
    assert bench.deliveries == []


def test_aborted_upload_is_a_delivery_without_messages(bench: Bench) -> None:
    bench.request_plan()
    bench.give(abort())
    bench.report()
    (delivery,) = bench.deliveries
    assert (delivery.kind, delivery.messages) == ("s3_task_executor", 0)


def test_each_task_has_its_assignments(bench: Bench) -> None:
    for task in "ab":
        bench.request_plan(task=task)
        bench.give(messages(task), task=task)
    bench.report("a", task="a")
    assert [list(each.assignments) for each in bench.only.tasks.values()] == [[], ["b"]]


def test_assignments_that_a_task_no_longer_holds_are_forgotten(bench: Bench) -> None:
    bench.request_plan()
    bench.give(messages("a"), messages("b"))
    bench.request_plan("b", "c")
    assert list(bench.task.assignments) == ["b"]
    assert bench.deliveries == []


def test_assignments_stay_while_a_task_is_disconnected(bench: Bench) -> None:
    bench.request_plan()
    bench.give(messages())
    bench.leave()
    bench.seconds += 1
    bench.request_plan("l")
    bench.report()
    assert [delivery.seconds for delivery in bench.deliveries] == [1.0]


def test_only_the_latest_deliveries_of_a_kind_are_kept_and_all_are_counted(bench: Bench) -> None:
    bench.request_plan()
    for number in range(300):
        bench.give(messages(first=number, end=number + 1))
        bench.report()

    assert len(bench.deliveries) == 60
    assert bench.task.deliveries == 300
    assert sum(bench.pipelines.durations["http"].snapshot().counts) == 300


def test_frequent_deliveries_do_not_evict_other_kinds(bench: Bench) -> None:
    bench.request_plan()
    bench.give(abort("abort"))
    bench.seconds += 5
    bench.report("abort")
    for _ in range(100):
        bench.seconds += 1
        bench.give(messages())
        bench.report()

    assert [delivery.kind for delivery in bench.deliveries] == ["s3_task_executor"] + 60 * ["http"]
    ended = [delivery.ended for delivery in bench.deliveries]
    assert ended == sorted(ended)


# Pipelines and tasks


def test_pipeline_is_connected_as_long_as_one_of_its_tasks_is(bench: Bench) -> None:
    for task in "ab":
        bench.request_plan(task=task)
    assert bench.pipelines.count_tasks("p") == 2
    bench.leave(task="a")
    assert bench.only.is_connected
    assert bench.pipelines.count_tasks("p") == 1
    bench.seconds += 5
    bench.leave(task="b")
    assert not bench.only.is_connected
    assert bench.pipelines.count_tasks("p") == 0
    assert bench.only.last_seen == START + 5000


def test_task_that_reconnects_is_the_same_task(bench: Bench) -> None:
    bench.request_plan()
    bench.leave()
    bench.seconds += 100
    bench.request_plan()
    assert bench.task.is_connected
    assert (bench.task.started, bench.task.last_seen) == (START, START + 100_000)


def test_description_is_kept(bench: Bench) -> None:
    bench.request_plan()
    assert str(bench.only) == "p"
    bench.request_plan(about=ABOUT)
    bench.request_plan()
    assert bench.only.about == ABOUT
    assert str(bench.only) == "p on Spark 4.1.0, local[4]"


def test_disconnected_pipelines_are_evicted_when_others_connect(bench: Bench) -> None:
    bench.request_plan(name="stays")
    for number in range(20):
        bench.seconds += 1
        bench.request_plan(name=str(number))
        bench.leave(str(number))

    assert bench.names == ["stays", *map(str, range(13, 20))]
    bench.request_plan(name="another")
    assert bench.names == ["stays", *map(str, range(14, 20)), "another"]


def test_connected_pipelines_are_not_evicted(bench: Bench) -> None:
    for number in range(20):
        bench.request_plan(name=str(number))

    assert len(bench.names) == 20


def test_disconnected_tasks_are_evicted_when_others_connect(bench: Bench) -> None:
    bench.request_plan(task="stays")
    for number in range(40):
        bench.seconds += 1
        bench.request_plan(task=str(number))
        bench.leave(task=str(number))

    assert list(bench.only.tasks) == ["stays", *map(str, range(25, 40))]


def test_connected_tasks_are_not_evicted(bench: Bench) -> None:
    for number in range(40):
        bench.request_plan(task=str(number))

    assert len(bench.only.tasks) == 40


def test_connection_and_disconnection_are_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        for task in "aab":
            bench.request_plan(task=task, about=ABOUT)
        for task in "ab":
            bench.leave(task=task)

    assert caplog.messages == [
        "pipeline connected: p on Spark 4.1.0, local[4]",
        "pipeline disconnected: p on Spark 4.1.0, local[4]",
    ]
