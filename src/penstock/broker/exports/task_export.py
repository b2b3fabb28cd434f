"""An export of S3 tasks: its uploads, and the statuses of its tasks."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.broker.exports.dead_letters import DeadLetters
from penstock.broker.exports.deliverable import Outcome
from penstock.broker.exports.export import Export
from penstock.broker.exports.lease import Lease, ParsedId
from penstock.broker.exports.pacing import Due
from penstock.broker.exports.statuses import Origin, Statuses
from penstock.broker.streams import Stream
from penstock.model import ExportConfig, S3ExportTaskExecutorConfig
from penstock.model.exporting import DeliveryReport, TaskEvent, TaskSlice, Upload
from penstock.store.rows import UploadProgress

# A task of the pipeline reads and parses all S3 tasks of a slice before the first upload.
_MAX_TASKS = 2000
_MAX_SLICE_BYTES = 1024 * 1024


class TaskExport(Export):
    config: S3ExportTaskExecutorConfig

    def __init__(
        self,
        stream: Stream,
        kind: str,
        config: ExportConfig,
        dead_letters: DeadLetters,
        statuses: Statuses,
        uploads: Iterable[Upload] = (),
    ) -> None:
        """`uploads`: those that had begun when the broker was stopped."""
        super().__init__(stream, kind, config)
        self._dead_letters = dead_letters
        self._statuses = statuses
        self.uploads = list(uploads)
        # Tasks that the stream dropped while a task of the pipeline held them: their events are
        # written unless a report says that they were carried out.
        self.dropped: list[TaskEvent] = []
        # The report that is being stored: the end of what it settles, and the tasks that it ends.
        self._settling_end = 0
        self._settling_ended: frozenset[int] = frozenset()

    @property
    def origin(self) -> Origin:
        return Origin(self.stream.name, self.config.identifier, self.config.status_config)

    @property
    def pending_from(self) -> int:
        """The number of the first task that no report has settled."""
        return max(self.next_number, self._settling_end)

    @property
    def held_end(self) -> int:
        return max(super().held_end, self._settling_end)

    @property
    def ended_in_report(self) -> frozenset[int]:
        """Tasks that end with the report that is being stored."""
        return self._settling_ended

    def track(
        self, uploads: Iterable[Upload], *, are_abandoned: bool = False
    ) -> list[UploadProgress]:
        """Uploads as they are stored."""
        origin = self.origin
        return [
            UploadProgress(
                export_id=self.id,
                stream=origin.stream,
                identifier=origin.identifier,
                status_config=origin.status_config,
                upload=upload,
                is_abandoned=are_abandoned,
            )
            for upload in uploads
        ]

    # Leases

    def find_resumed(self, parsed: ParsedId) -> int | None:
        # Tasks that the stream dropped before the restart are canceled.
        first = super().find_resumed(parsed)
        return first if first == self.next_number else None

    def due(self, now: float, now_millis: int) -> Due:  # noqa: ARG002 - tasks never wait
        end = self.stream.log.end
        return Due(end, None, max(end, self.next_number) + 1)

    def cut(self, due_end: int, max_bytes: int, max_wire_bytes: float) -> int:  # noqa: ARG002
        first = self.next_number
        limit = max(min(_MAX_SLICE_BYTES, max_bytes), 1)
        end = self.stream.log.find_end(first, min(due_end, first + _MAX_TASKS), limit)
        return max(end, min(self.arrived[-1] + 1, due_end)) if self.arrived else end

    def wire_bytes_of(self, size: int) -> float:  # noqa: ARG002
        """The size of a task tells nothing about its file, whose bytes are reserved later."""
        return 0.0

    def describe(self, lease: Lease, is_metered: bool) -> TaskSlice:
        return TaskSlice(
            **self.slice_fields(lease),
            uploads=[each for each in self.uploads if _is_within(lease, each.sequence_number)],
            time_to_live=self.stream.definition.time_to_live_millis,
            is_metered=is_metered,
        )

    # Reports

    def within_lease(self, report: DeliveryReport, lease: Lease) -> DeliveryReport:
        def find(uploads: list[Upload]) -> list[Upload]:
            return [each for each in uploads if _is_within(lease, each.sequence_number)]

        return msgspec.structs.replace(
            super().within_lease(report, lease),
            events=[each for each in report.events if _is_within(lease, each.sequence_number)],
            uploads=find(report.uploads),
            abandoned=find(report.abandoned),
        )

    def settle(self, report: DeliveryReport, lease: Lease, now_millis: int) -> Outcome:
        sound = self.within_lease(report, lease)
        sound = self._dead_letters.keep(self.stream, sound, now_millis)
        self._settling_end = sound.settled_end
        self._settling_ended = ended_tasks(sound)
        self._statuses.write(self.origin, sound.events, now_millis)
        return self._follow_uploads(sound, lease)._replace(
            progress=self.advanced(sound, now_millis)
        )

    def _follow_uploads(self, report: DeliveryReport, lease: Lease) -> Outcome:
        abandoned = self.track(report.abandoned, are_abandoned=True)
        abandoned_ids = {each.id for each in abandoned}
        # A report has all uploads of its lease, and none of other messages.
        others = [each for each in self.uploads if not _is_within(lease, each.sequence_number)]
        uploads = [
            each for each in self.track([*others, *report.uploads]) if each.id not in abandoned_ids
        ]
        known_ids = abandoned_ids | {each.id for each in uploads}
        gone = [each for each in self.track(self.uploads) if each.id not in known_ids]
        ended = [each.id for each in gone if _has_ended(each.upload, uploads, report)]
        # An upload that the task did not know of is not continued.
        unknown = [each.upload for each in gone if each.id not in ended]
        abandoned += self.track(unknown, are_abandoned=True)
        return Outcome(report, None, uploads, abandoned, ended)

    def _has_advanced(self, report: DeliveryReport) -> bool:
        before, after = _count_parts(self.uploads), _count_parts(report.uploads)
        return super()._has_advanced(report) or after > before

    def apply(self, outcome: Outcome) -> None:
        self.note_settled(outcome.report)
        self.uploads = outcome.continued
        self._forget_report()

    def cancel_settling(self) -> None:
        super().cancel_settling()
        self._forget_report()

    def _forget_report(self) -> None:
        self._settling_end = 0
        self._settling_ended = frozenset()


def ended_tasks(report: DeliveryReport) -> frozenset[int]:
    return frozenset(each.sequence_number for each in report.events if each.ends_task)


def _is_within(lease: Lease, number: int) -> bool:
    return lease.first <= number < lease.end


def _has_ended(upload: Upload, uploads: list[UploadProgress], report: DeliveryReport) -> bool:
    """Whether an upload that is no longer reported was completed or aborted."""
    number = upload.sequence_number
    if number < report.settled_end or number in report.arrived:
        return True
    # An upload gets its id after it was reported for the first time.
    return not upload.upload_id and any(each.upload.sequence_number == number for each in uploads)


def _count_parts(uploads: Iterable[Upload]) -> int:
    return sum(each.arrived_parts for each in uploads)
