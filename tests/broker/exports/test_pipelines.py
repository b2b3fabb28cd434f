"""Pipelines that come, work and go, on a clock that goes when it is told to."""

from __future__ import annotations

import pytest

from penstock.broker.exports.pipelines import Batch, Pipeline, Pipelines, Work
from penstock.model.exporting import Lane, PipelineDescription

START = 1_700_000_000_000
ABOUT = PipelineDescription(started=START, spark_version="4.1.0", master="local[4]")
WORK = Work(2, 30)


class Bench:
    def __init__(self) -> None:
        self.seconds = 100.0
        self.pipelines = Pipelines(
            lambda: self.seconds, lambda: START + round((self.seconds - 100) * 1000)
        )

    def ask(
        self, name: str = "p", lane: Lane = Lane.steady, about: PipelineDescription | None = None
    ) -> None:
        self.pipelines.note_asking(name, lane, about)

    def give(self, work: Work = WORK, name: str = "p", lane: Lane = Lane.steady) -> None:
        self.pipelines.note_given(name, lane, work)

    def leave(self, name: str = "p", lane: Lane = Lane.steady) -> None:
        self.pipelines.note_departure(name, lane)

    @property
    def names(self) -> list[str]:
        return [pipeline.name for pipeline in self.pipelines]

    @property
    def only(self) -> Pipeline:
        (pipeline,) = self.pipelines
        return pipeline

    @property
    def batches(self) -> list[Batch]:
        return list(self.pipelines.batches)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_nothing_is_known_of_those_that_never_asked(bench: Bench) -> None:
    assert bench.names == []
    assert bench.batches == []
    bench.leave("nobody")
    assert bench.names == []


def test_a_batch_lasts_until_the_next_is_asked_for(bench: Bench) -> None:
    bench.ask()
    bench.seconds += 7
    bench.give()
    bench.seconds += 1.5
    assert bench.batches == []
    bench.ask()

    batch = Batch("p", Lane.steady, 1, START + 7000, 1.5, WORK)
    assert bench.batches == [batch]
    lane = bench.only.lanes[Lane.steady]
    assert (lane.batches, lane.last) == (1, batch)
    durations = bench.pipelines.durations[Lane.steady].look()
    assert (sum(durations.counts), durations.sum) == (1, 1.5)
    assert bench.only.last_seen == START + 8500


def test_one_that_was_given_nothing_has_no_batch(bench: Bench) -> None:
    bench.ask()
    bench.give(Work(0, 0))
    bench.seconds += 1
    bench.ask()

    assert bench.batches == []
    assert bench.only.lanes[Lane.steady].batches == 0


def test_lanes_have_batches_of_their_own(bench: Bench) -> None:
    for lane in (Lane.steady, Lane.files):
        bench.ask(lane=lane)
        bench.give(lane=lane)
    bench.seconds += 1
    bench.ask(lane=Lane.files)
    bench.seconds += 1
    bench.ask(lane=Lane.steady)

    assert [(batch.lane, batch.number, batch.seconds) for batch in bench.batches] == [
        (Lane.files, 1, 1.0),
        (Lane.steady, 1, 2.0),
    ]


def test_of_a_batch_whose_pipeline_left_nobody_knows_how_long_it_took(bench: Bench) -> None:
    bench.ask()
    bench.give()
    bench.leave()
    assert not bench.only.is_connected
    bench.seconds += 100
    bench.ask()

    assert bench.batches == []
    assert bench.only.is_connected


def test_one_is_connected_as_long_as_one_of_its_lanes_is(bench: Bench) -> None:
    bench.ask(lane=Lane.steady)
    bench.ask(lane=Lane.files)
    bench.leave(lane=Lane.steady)
    assert bench.only.is_connected
    bench.leave(lane=Lane.files)
    assert not bench.only.is_connected


def test_what_it_told_of_itself_is_kept(bench: Bench) -> None:
    bench.ask(about=ABOUT)
    bench.ask()

    assert bench.only.about == ABOUT
    assert str(bench.only) == "p on Spark 4.1.0, local[4]"


def test_only_the_latest_batches_are_kept_and_all_are_counted(bench: Bench) -> None:
    for _ in range(301):
        bench.ask()
        bench.give()

    assert [batch.number for batch in bench.batches] == list(range(101, 301))
    assert bench.only.lanes[Lane.steady].batches == 300
    assert sum(bench.pipelines.durations[Lane.steady].look().counts) == 300


def test_those_that_are_gone_are_forgotten_when_others_come(bench: Bench) -> None:
    bench.ask("stays")
    for number in range(20):
        bench.seconds += 1
        bench.ask(str(number))
        bench.leave(str(number))

    assert bench.names == ["stays", *map(str, range(13, 20))]
    bench.ask("another")
    assert bench.names == ["stays", *map(str, range(14, 20)), "another"]


def test_those_that_are_connected_are_not_forgotten(bench: Bench) -> None:
    for number in range(20):
        bench.ask(str(number))

    assert len(bench.names) == 20


def test_that_one_came_and_went_is_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        for lane in Lane:
            bench.ask(lane=lane, about=ABOUT)
            bench.ask(lane=lane, about=ABOUT)
        for lane in Lane:
            bench.leave(lane=lane)

    assert caplog.messages == [
        "a pipeline asks for work: p on Spark 4.1.0, local[4]",
        "a pipeline has gone: p on Spark 4.1.0, local[4]",
    ]
