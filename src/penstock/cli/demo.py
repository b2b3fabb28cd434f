"""Demo devices: a small wind farm whose sensors append at different rates."""

from __future__ import annotations

import contextlib
import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from penstock.client.blocking import StreamManagerClient
from penstock.errors import InvalidRequestException
from penstock.model import MessageStreamDefinition, StrategyOnFull


class Device(NamedTuple):
    stream: str
    seconds_between: float
    measure: Callable[[float], dict[str, float]]


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


DEVICES = (
    Device("turbine-1", 0.1, _turbine(0.0)),
    Device("turbine-2", 0.1, _turbine(1.0)),
    Device("turbine-3", 0.25, _turbine(2.0)),
    Device("weather-mast", 1.0, _weather),
)


def run_demo(root: Path) -> None:
    """Appends until it is interrupted or the broker is gone."""
    with StreamManagerClient(root=root, reconnect_timeout=0) as client:
        for device in DEVICES:
            _create(client, device.stream)
        due = dict.fromkeys(DEVICES, time.monotonic())
        while True:
            device = min(DEVICES, key=due.__getitem__)
            time.sleep(max(0.0, due[device] - time.monotonic()))
            due[device] += device.seconds_between
            reading = {"time": round(time.time(), 3), **device.measure(time.time())}
            client.append_message(device.stream, json.dumps(reading).encode())


def _create(client: StreamManagerClient, name: str) -> None:
    definition = MessageStreamDefinition(name, strategy_on_full=StrategyOnFull.OverwriteOldestData)
    # It may be there from an earlier run.
    with contextlib.suppress(InvalidRequestException):
        client.create_message_stream(definition)
