"""What broker and pipeline tell each other: what is due, and what became of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.model.limits import Name, SequenceNumber
from penstock.model.storage import SegmentSummary


class Lane(StrEnum):
    """Exports that wait for each other: a batch of a lane ends with its slowest delivery."""

    # Those that answer quickly, whatever they answer.
    steady = "steady"
    # Those whose last delivery took too long.
    recovering = "recovering"
    # Uploads of files.
    files = "files"


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
    # What was put on the wire, also in vain.
    sent_bytes: Annotated[int, Meta(ge=0)] = 0
    # Why it ended before its end; empty if the time was up, or nothing was wrong.
    error: Annotated[str, Meta(max_length=2048)] = ""
    # It is to be left alone for so long, at least.
    pause_millis: Annotated[int, Meta(ge=0)] = 0
    elapsed_millis: Annotated[int, Meta(ge=0)] = 0
    # It took longer than others of its lane may be kept waiting.
    was_slow: bool = False
