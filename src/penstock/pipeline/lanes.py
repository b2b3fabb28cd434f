"""How long the batches of a lane may take, and so how long its exports may wait for each other."""

from __future__ import annotations

from typing import NamedTuple

from penstock.model.exporting import Lane

# What a batch takes beside its deliveries, on a busy machine.
_MARGIN_SECONDS = 15.0


class LaneLimits(NamedTuple):
    # After so many seconds no call is begun.
    seconds: float
    # A call that is not answered so many seconds later is given up.
    patience: float
    # As many tasks as there are cores, or one.
    is_parallel: bool
    # How many deliveries a task has at once; None where that is for the settings to say.
    threads: int | None = None
    # A call may be under way for so long as it goes on; None where it may just have to be answered.
    slow_seconds: float | None = None

    @property
    def longest(self) -> float:
        return self.seconds + (self.slow_seconds or self.patience)

    @property
    def lease_millis(self) -> int:
        return int((self.longest + _MARGIN_SECONDS) * 1000)


LIMITS = {
    # An urgent message waits for a batch that has just begun: it has to be on its way within two
    # seconds. One that has just found out that a destination hangs takes a little longer.
    Lane.steady: LaneLimits(seconds=0.8, patience=1.0, is_parallel=True),
    # Here are those that hang, or whose connections are slow: they wait, and cost nothing else.
    Lane.recovering: LaneLimits(seconds=5.0, patience=30.0, is_parallel=False, threads=64),
    # A part of a file takes as long as the line needs for it; all that is asked is that it goes on.
    # The time may be renewed, as long as nobody else waits.
    Lane.files: LaneLimits(seconds=1.0, patience=60.0, is_parallel=False, slow_seconds=3000.0),
}
