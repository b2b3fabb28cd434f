"""Accepted reports: their outcomes, which are stored together."""

from __future__ import annotations

from typing import NamedTuple

from penstock.broker.exports.deliverable import Deliverable, Outcome
from penstock.broker.exports.lease import Lease
from penstock.model.exporting import DeliveryReport
from penstock.store.rows import ExportProgress, UploadChange


class Settled(NamedTuple):
    deliverable: Deliverable
    lease: Lease
    # As it came.
    report: DeliveryReport
    outcome: Outcome


class Settlement:
    """To be stored and then applied, or canceled if that fails."""

    def __init__(self) -> None:
        self.settled: list[Settled] = []
        # Leases of reports that were accepted before and came again.
        self.repeated: list[str] = []
        # Leases that have ended although their reports are not final: their exports were removed or
        # moved meanwhile, or messages could not be kept.
        self.lost: set[str] = set()

    @property
    def accepted(self) -> list[str]:
        leases = [*(each.report.lease for each in self.settled), *self.repeated]
        return [lease for lease in leases if lease not in self.lost]

    @property
    def has_skipped(self) -> bool:
        return any(each.outcome.report.skipped for each in self.settled)

    @property
    def is_final(self) -> bool:
        return all(each.report.is_final for each in self.settled)

    def progress(self) -> dict[str, list[ExportProgress]]:
        """By the name of the stream."""
        progress: dict[str, list[ExportProgress]] = {}
        for each in self.settled:
            if each.outcome.progress is not None:
                stream_name = each.deliverable.stream_name
                progress.setdefault(stream_name, []).append(each.outcome.progress)
        return progress

    def uploads(self) -> UploadChange:
        outcomes = [each.outcome for each in self.settled]
        return UploadChange(
            [upload for each in outcomes for upload in (*each.uploads, *each.abandoned)],
            [upload_id for each in outcomes for upload_id in each.ended],
        )
