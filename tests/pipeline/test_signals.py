"""What the driver of a pipeline and the sources of its lanes tell each other."""

from __future__ import annotations

from pathlib import Path

from penstock.model.exporting import Lane
from penstock.pipeline.signals import Signals


def test_a_lane_tells_that_it_has_seen_the_end(tmp_path: Path) -> None:
    driver, source = Signals(tmp_path), Signals(tmp_path)
    assert not source.is_stopping()
    driver.ask_to_stop()
    assert source.is_stopping()
    assert not driver.has_stopped(Lane.steady)
    source.note_stopped(Lane.steady)
    assert driver.has_stopped(Lane.steady)
    assert not driver.has_stopped(Lane.files)


def test_a_lane_tells_which_others_are_wanted(tmp_path: Path) -> None:
    driver, source = Signals(tmp_path), Signals(tmp_path)
    source.want([Lane.files])
    source.want([Lane.files])
    assert driver.is_wanted(Lane.files)
    assert not driver.is_wanted(Lane.recovering)
