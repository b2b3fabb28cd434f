"""Decisions of the driver. How it runs, recovers and ends is tested in `tests/exports`."""

from __future__ import annotations

from typing import cast

from penstock.model.exporting import ExportPlan
from penstock.pipeline.driver import (
    PipelineDriver,
    TaskAbsence,
    TaskDemand,
    _BrokerWatch,
    _TaskThread,
    destination_settings,
)
from penstock.settings import Settings
from penstock.spark.place import Place


def test_destinations_have_the_settings_of_the_broker() -> None:
    settings = Settings(
        root="/root",
        exporter_kinesis_inter_call_delay_ms=5,
        kinesis_partition_key="field:a.b",
        channels="/channels",
        s3_parts_at_once=2,
        s3_delete_uploaded_files=True,
        read_only_dirs="/files",
    )
    found = destination_settings(settings)
    assert found.kinesis_inter_call_delay_ms == 5
    assert found.kinesis_partition_key == "field:a.b"
    assert found.channels == "/channels"
    assert (found.s3_parts_at_once, found.s3_delete_uploaded_files) == (2, True)
    assert found.read_only_directories == ("/files",)


def test_another_task_starts_when_exports_stay_due() -> None:
    demand = TaskDemand()
    due, done = make_plan(waiting=3, tasks=1), make_plan(waiting=0, tasks=1)
    polls = [demand.needs_task(each, 1) for each in (due, due, done, due, due, due)]
    assert polls == [False, False, False, False, False, True]


def test_no_other_task_starts_before_the_last_one_is_connected() -> None:
    demand = TaskDemand()
    plans = [make_plan(waiting=3, tasks=0)] * 5 + [make_plan(waiting=3, tasks=1)] * 2
    assert not any(demand.needs_task(each, 1) for each in plans)
    assert not demand.needs_task(make_plan(waiting=3, tasks=1), started_tasks=2)


def test_absence_of_tasks_ends_when_one_connects() -> None:
    absence = TaskAbsence()
    missing, connected = make_plan(tasks=0), make_plan(tasks=1)
    assert absence.seconds(missing, now=100) == 0
    assert absence.seconds(missing, now=120) == 20
    assert absence.seconds(connected, now=130) == 0
    assert absence.seconds(missing, now=131) == 1


def test_absence_of_tasks_restarts_with_the_broker() -> None:
    absence = TaskAbsence()
    absence.seconds(make_plan(tasks=1), now=100)
    # The broker does not know yet which tasks run.
    assert absence.seconds(make_plan(tasks=0, instance="next"), now=200) == 0
    assert absence.seconds(make_plan(tasks=0, instance="next"), now=202) == 2


class TaskThatWaitsForCores:
    is_alive = True

    def join(self, seconds: float) -> None:
        raise AssertionError(f"the pipeline waits {seconds} s")


class StoppedWatch:
    has_stopped_all = True

    def stop_tasks(self) -> None:
        pass


def test_stop_does_not_wait_for_tasks_that_never_connected() -> None:
    pipeline = PipelineDriver(cast("Place", None), Settings(root="/root"))
    pipeline._threads = [cast("_TaskThread", TaskThatWaitsForCores())]
    pipeline._finish(cast("_BrokerWatch", StoppedWatch()))
    pipeline._application.stop()


def make_plan(tasks: int, waiting: int = 0, instance: str = "i") -> ExportPlan:
    return ExportPlan(root="/", instance=instance, work=[], waiting=waiting, tasks=tasks)
