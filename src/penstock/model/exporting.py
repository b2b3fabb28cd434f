"""What broker and pipeline tell each other: what is due, and what became of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.model.limits import Name, SequenceNumber
from penstock.model.status import Status
from penstock.model.storage import SegmentSummary


class Lane(StrEnum):
    """Exports that wait for each other: a batch of a lane ends with its slowest delivery."""

    # Those that answer quickly, whatever they answer.
    steady = "steady"
    # Those whose last delivery took too long.
    recovering = "recovering"
    # Uploads of files.
    files = "files"


# The kind of a slice that has no messages, and an upload that nobody goes on with: it is to be
# aborted, so that nothing of it is left and billed.
ABANDONED_UPLOAD = "abandoned_upload"


class Upload(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A multipart upload that has begun: what it takes to go on with it, or to abort it."""

    # Of its task.
    sequence_number: SequenceNumber
    bucket: str
    key: str
    # S3's name for it. Empty while it is being created: then there may be one, or not.
    upload_id: str = ""
    # In milliseconds since 1970.
    began: int
    # What the file was when it began; of another one no part may be added.
    fingerprint: str
    size: int
    part_size: int
    # By place: what S3 is told of each part that has arrived, and nothing for one that has not.
    parts: list[str] = []


class TaskEvent(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Something that happened to an S3 task, for the status stream of its export."""

    sequence_number: SequenceNumber
    status: Status
    message: Annotated[str, Meta(max_length=2048)]
    # In milliseconds since 1970.
    time: int
    # The task as it was given, under its names on the wire; None if it was none.
    task: dict[str, Any] | None = None


class PipelineDescription(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What a pipeline tells of itself, for people who look at it."""

    # In milliseconds since 1970.
    started: int
    spark_version: Annotated[str, Meta(max_length=64)] = ""
    # Where Spark runs.
    master: Annotated[str, Meta(max_length=255)] = ""
    # Spark's own page; None if there is none.
    spark_page: Annotated[str, Meta(max_length=255)] | None = None


class ExportSlice(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Messages [first, end) of a stream, leased to one pipeline, which sends them to one export."""

    lease: str
    stream: str
    stream_id: str
    # The list in the export definition that the configuration stands in, and the configuration.
    kind: str
    config: dict[str, Any]
    first: int
    end: int
    # Of these messages: those that have arrived before.
    arrived: list[int]
    has_files: bool
    segments: list[SegmentSummary]
    # For S3 tasks: uploads that have begun, when tasks are too old to be carried out (in
    # milliseconds after they were appended), and how many bytes may be sent before the next plan.
    uploads: list[Upload] = []
    time_to_live: int | None = None
    max_sent_bytes: int | None = None


class SliceHeader(msgspec.Struct, frozen=True):
    """What the task that delivers a slice is told of it."""

    slice: ExportSlice
    # Of the broker; see ExportPlan.
    root: str
    instance: str


class ExportPlan(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What is due, the most urgent first."""

    # The broker's directory, and by what a program on the same machine knows that it is.
    root: str
    instance: str
    slices: list[ExportSlice]
    # Those that have exports at all; others need not be asked for.
    lanes: list[Lane] = []


class SkippedMessage(msgspec.Struct, frozen=True, rename="camel"):
    """A message that its destination never takes, and why."""

    sequence_number: SequenceNumber
    reason: Annotated[str, Meta(max_length=2048)]


class ExportReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What became of a slice."""

    lease: str
    stream: Name
    stream_id: str
    identifier: Name
    first: SequenceNumber
    # All messages below have arrived or were skipped.
    settled_end: SequenceNumber
    # Others that have arrived.
    arrived: Annotated[list[SequenceNumber], Meta(max_length=1024)] = []
    exported_messages: Annotated[int, Meta(ge=0)] = 0
    exported_bytes: Annotated[int, Meta(ge=0)] = 0
    skipped: Annotated[list[SkippedMessage], Meta(max_length=4096)] = []
    # Of those below `settled_end`: how many could not be read, damaged or dropped by then.
    missing: Annotated[int, Meta(ge=0)] = 0
    # What was put on the wire, also in vain.
    sent_bytes: Annotated[int, Meta(ge=0)] = 0
    # Why it ended before its end; empty if the time was up, or nothing was wrong.
    error: Annotated[str, Meta(max_length=2048)] = ""
    # It is to be left alone for so long, at least.
    pause_millis: Annotated[int, Meta(ge=0)] = 0
    elapsed_millis: Annotated[int, Meta(ge=0)] = 0
    # It took longer than others of its lane may be kept waiting.
    was_slow: bool = False
    # Of S3 tasks: what happened, in its order; all uploads that have begun and are not over; and
    # those that should have been aborted and could not be.
    events: Annotated[list[TaskEvent], Meta(max_length=16_384)] = []
    uploads: Annotated[list[Upload], Meta(max_length=1024)] = []
    abandoned: Annotated[list[Upload], Meta(max_length=1024)] = []
    # There is more to come of the slice: what it says is stored, and the lease goes on.
    is_interim: bool = False


class CommittedExports(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What the broker says to reports."""

    # The leases of those that it took.
    accepted: frozenset[str]
    # There is something due for which nobody has a lease, in a lane of one that is interim.
    is_awaited: bool = False
