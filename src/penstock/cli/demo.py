"""Demo devices: a small wind farm whose sensors append at different rates."""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from penstock.client.blocking import StreamManagerClient
from penstock.errors import InvalidRequestException, StreamManagerException
from penstock.model import (
    ExportDefinition,
    IoTAnalyticsConfig,
    KinesisConfig,
    MessageStreamDefinition,
    StrategyOnFull,
)

# Before the first attempt to reach the broker, and between two.
_PAUSE_SECONDS = 0.1


class Device(NamedTuple):
    stream: str
    seconds_between: float
    measure: Callable[[float], dict[str, float]]
    # Where its stream goes, if there is a cloud.
    exports: ExportDefinition


def _turbine(phase: float) -> Callable[[float], dict[str, float]]:
    def measure(seconds: float) -> dict[str, float]:
        wind = 8 + 3 * math.sin(seconds / 60 + phase) + random.gauss(0, 0.4)
        return {
            "windSpeed": round(wind, 2),
            "rotorSpeed": round(1.4 * wind, 2),
            "powerKw": round(min(2000.0, 1.9 * max(wind, 0.0) ** 3), 1),
        }

    return measure


def _weather(seconds: float) -> dict[str, float]:
    return {
        "temperature": round(11 + 4 * math.sin(seconds / 300), 2),
        "pressure": round(1013 + random.gauss(0, 0.3), 2),
    }


def _to_kinesis(priority: int) -> ExportDefinition:
    config = KinesisConfig("to-kinesis", kinesis_stream_name="wind-farm", priority=priority)
    return ExportDefinition(kinesis=[config])


DEVICES = (
    Device("turbine-1", 0.1, _turbine(0.0), _to_kinesis(1)),
    Device("turbine-2", 0.1, _turbine(1.0), _to_kinesis(5)),
    Device("turbine-3", 0.25, _turbine(2.0), _to_kinesis(10)),
    Device(
        "weather-mast",
        1.0,
        _weather,
        ExportDefinition(iot_analytics=[IoTAnalyticsConfig("to-channel", iot_channel="weather")]),
    ),
)


def run_demo(root: Path, is_over: threading.Event, *, exports: bool) -> None:
    """Appends until it is over, also to a broker that was away for a while."""
    while not is_over.wait(_PAUSE_SECONDS):
        with contextlib.suppress(OSError, StreamManagerException):
            _append(root, is_over, exports)


def _append(root: Path, is_over: threading.Event, exports: bool) -> None:
    with StreamManagerClient(root=root, reconnect_timeout=0) as client:
        for device in DEVICES:
            _create(client, device, exports)
        due = {device.stream: time.monotonic() for device in DEVICES}
        device = DEVICES[0]
        while not is_over.wait(max(0.0, due[device.stream] - time.monotonic())):
            due[device.stream] += device.seconds_between
            reading = {"time": round(time.time(), 3), **device.measure(time.time())}
            client.append_message(device.stream, json.dumps(reading).encode())
            device = min(DEVICES, key=lambda it: due[it.stream])


def _create(client: StreamManagerClient, device: Device, exports: bool) -> None:
    definition = MessageStreamDefinition(
        device.stream, strategy_on_full=StrategyOnFull.OverwriteOldestData
    )
    if exports:
        definition.export_definition = device.exports
    # It may be there from an earlier run.
    with contextlib.suppress(InvalidRequestException):
        client.create_message_stream(definition)
