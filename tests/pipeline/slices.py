"""Exports over HTTP: streams that have one, slices of them, and what a lane is told."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock import (
    ExportDefinition,
    HTTPConfig,
    MessageStreamDefinition,
    StrategyOnFull,
    StreamManagerClient,
)
from penstock.model.exporting import ExportSlice, Lane, SliceHeader
from penstock.model.validation import to_wire
from penstock.pipeline.destinations.destination import DestinationSettings, Messages
from penstock.pipeline.options import PipelineOptions, encode_place
from penstock.spark.options import BrokerOptions
from penstock.spark.place import Place

_numbers = itertools.count()


def new_name() -> str:
    return f"stream-{next(_numbers)}"


def create(client: StreamManagerClient, name: str, uri: str, **fields: Any) -> str:
    """A stream with one export."""
    config = HTTPConfig(identifier="to-http", uri=uri, **fields)
    client.create_message_stream(
        MessageStreamDefinition(
            name,
            strategy_on_full=StrategyOnFull.OverwriteOldestData,
            export_definition=ExportDefinition(http=[config]),
        )
    )
    return name


def options_for(lane: Lane, directory: Path, **broker: Any) -> PipelineOptions:
    """Of a pipeline with a directory of its own, and a broker that is found by these options."""
    return PipelineOptions(
        pipeline=directory.name,
        lane=lane.value,
        broker=encode_place(Place.find(BrokerOptions(**broker))),
        signals=str(directory),
        threads=4,
        settings=DestinationSettings(kinesis_partition_key="field:a.b", channels="/channels"),
    )


def header_for(
    uri: str,
    stream: str = "s",
    first: int = 0,
    end: int = 1,
    arrived: Sequence[int] = (),
    kind: str = "http",
) -> SliceHeader:
    found = ExportSlice(
        lease=f"lease of {stream}",
        stream=stream,
        stream_id=f"id of {stream}",
        kind=kind,
        config=to_wire(HTTPConfig(identifier="to-http", uri=uri)),
        first=first,
        end=end,
        arrived=list(arrived),
        has_files=False,
        segments=[],
    )
    return SliceHeader(found, "/nowhere", "nobody")


def messages_of(header: SliceHeader) -> Messages:
    """Those that have not arrived before; each is its number."""
    found = header.slice
    numbers = [it for it in range(found.first, found.end) if it not in found.arrived]
    payloads = [b"%d" % number for number in numbers]
    return Messages(found.stream, found.first, numbers, [0] * len(numbers), payloads)


def nothing_large(header: SliceHeader, number: int) -> bytes:
    """For rows that hold all of their payloads."""
    raise AssertionError(f"message {number} of {header.slice.stream} is looked for elsewhere")
