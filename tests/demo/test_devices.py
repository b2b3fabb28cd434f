"""The measurements of the sensors: plausible values, in the format of their destinations."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest

from penstock.demo.devices import DEVICES, STREAMS, VIBRATION, Device, rotor_angle_at, wind_at
from penstock.sandbox.local_sandbox import Sandbox
from tests.sandbox.posting import post

BY_STREAM = {device.stream: device for device in DEVICES}
READINGS = ("turbine-1", "turbine-2", "turbine-3", "weather-mast")
MEBIBYTE = 1024 * 1024


@pytest.mark.parametrize("name", READINGS)
def test_device_measures_plausible_numbers(name: str) -> None:
    for seconds in range(1, 3600, 60):
        (message,) = BY_STREAM[name].measure(float(seconds))
        reading = json.loads(message)
        assert reading.pop("time") == seconds
        assert all(-50 <= value <= 2000 for value in reading.values())


def test_vibrations_have_a_constant_rate() -> None:
    device = BY_STREAM["vibration"]

    first = [VIBRATION.unpack(message) for message in device.measure(1000.0)]
    second = [VIBRATION.unpack(it) for it in device.measure(1000.0 + device.seconds_between)]

    moments = [moment for moment, *_ in first + second]
    steps = [later - earlier for earlier, later in pairwise(moments)]
    assert steps == pytest.approx([0.01] * len(steps))
    assert all(-5 < value < 5 for _, *values in first for value in values)


def test_values_are_valid_for_sitewise() -> None:
    entries = [json.loads(message) for message in BY_STREAM["asset-values"].measure(time.time())]

    with Sandbox() as cloud:
        answer = post(f"{cloud.url}/properties", json.dumps({"entries": entries}).encode())
        names = cloud.names("iotsitewise")

    assert (answer.status, answer.answer) == (200, {"errorEntries": []})
    assert len(names) == 6
    assert names[0] == "/wind-farm/turbine-1/power"


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.stream)
def test_streams_are_small_and_overwrite(device: Device) -> None:
    definition = device.define(exports=True)

    assert definition.max_size <= 32 * MEBIBYTE
    assert definition.stream_segment_size * 8 == definition.max_size
    assert definition.strategy_on_full.name == "OverwriteOldestData"
    assert [export.identifier for export in definition.exports()]
    assert not list(device.define(exports=False).exports())


def test_turbines_have_different_priorities() -> None:
    kinesis = [BY_STREAM[name].exports.kinesis or [] for name in (*READINGS[:3], "vibration")]

    assert [config.priority for (config,) in kinesis] == [1, 5, 10, None]
    assert len(set(STREAMS)) == len(DEVICES)


def test_wind_is_delayed_between_turbines_and_the_rotor_turns() -> None:
    assert wind_at(0.0, "turbine-2") == pytest.approx(wind_at(60.0, "turbine-1"))
    assert rotor_angle_at(2.0) > rotor_angle_at(1.0)
