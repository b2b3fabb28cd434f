"""What the queries of a pipeline are started with, as the texts that Spark hands on."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from typing import Self

import msgspec

from penstock.model.exporting import PipelineDescription
from penstock.pipeline.destinations.destination import DestinationSettings
from penstock.spark.place import Place

# They hold the broker's token: Spark shows no option that is called so.
_OPTION = "secret"


class PipelineOptions(msgspec.Struct, frozen=True, kw_only=True):
    # Of this run.
    pipeline: str
    lane: str
    # The way to the broker, as a `Place`.
    broker: str
    # The directory of its `Signals`.
    signals: str
    # How many exports a task delivers at once.
    threads: int
    # What the broker is told of the pipeline.
    about: PipelineDescription | None = None
    settings: DestinationSettings

    def to_spark(self) -> dict[str, str]:
        return {_OPTION: msgspec.json.encode(self).decode()}

    @classmethod
    def from_spark(cls, options: Mapping[str, str]) -> Self:
        return msgspec.json.decode(options[_OPTION], type=cls)

    def place(self) -> Place:
        place: Place = pickle.loads(base64.b64decode(self.broker))  # noqa: S301 - our own
        return place


def encode_place(place: Place) -> str:
    return base64.b64encode(pickle.dumps(place)).decode()
