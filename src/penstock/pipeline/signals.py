"""What the driver of a pipeline and the sources of its lanes tell each other: files in a directory.

Spark runs a source in a process of its own, and has no other way to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from penstock.model.exporting import Lane


class Signals:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    # That it is to stop

    def ask_to_stop(self) -> None:
        self._file("stop").touch()

    def is_stopping(self) -> bool:
        """While it is, nothing more is planned."""
        return self._file("stop").exists()

    def note_stopped(self, lane: Lane) -> None:
        """The lane has seen it: it plans nothing from now on."""
        self._file("stopped", lane).touch()

    def has_stopped(self, lane: Lane) -> bool:
        return self._file("stopped", lane).exists()

    # That there is something to do

    def want(self, lanes: Iterable[Lane]) -> None:
        """There are exports in these lanes."""
        for lane in lanes:
            self._file("wanted", lane).touch()

    def is_wanted(self, lane: Lane) -> bool:
        return self._file("wanted", lane).exists()

    def _file(self, what: str, lane: Lane | None = None) -> Path:
        return self._directory / (what if lane is None else f"{what}-{lane.value}")
