"""The sensors of the wind farm: measurements, intervals and exports.

All turbines have the same wind with a delay, so that their measurements are consistent.
"""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable
from typing import NamedTuple
from uuid import uuid4

from penstock.model import (
    AssetPropertyValue,
    ExportDefinition,
    IoTAnalyticsConfig,
    IoTSiteWiseConfig,
    KinesisConfig,
    MessageStreamDefinition,
    PutAssetPropertyValueEntry,
    Quality,
    StrategyOnFull,
    TimeInNanos,
    Variant,
)
from penstock.model.json_bytes import Util

_MEBIBYTE = 1024 * 1024
_HOUR_MILLIS = 3600 * 1000

# A time in seconds since 1970, and accelerations along and across the shaft in m/s².
VIBRATION = struct.Struct(">dff")
_VIBRATIONS_PER_APPEND = 20
_VIBRATIONS_PER_SECOND = 100

_RATED_KW = 2000.0
_TURNS_PER_METRE = 1.4
# Below this wind speed in m/s, a turbine does not run.
_CUT_IN = 4.0
# The phase of the wind at each turbine, in radians.
_PHASES = {"turbine-1": 0.0, "turbine-2": 1.0, "turbine-3": 2.0}


class Device(NamedTuple):
    stream: str
    seconds_between: float
    # Returns messages for a time in seconds since 1970.
    measure: Callable[[float], list[bytes]]
    # The exports of its stream, if there is a cloud.
    exports: ExportDefinition
    # Small, because the demo may run for weeks.
    max_size: int = 32 * _MEBIBYTE
    time_to_live_millis: int | None = None

    def define(self, *, exports: bool) -> MessageStreamDefinition:
        return MessageStreamDefinition(
            name=self.stream,
            max_size=self.max_size,
            stream_segment_size=self.max_size // 8,
            time_to_live_millis=self.time_to_live_millis,
            strategy_on_full=StrategyOnFull.OverwriteOldestData,
            export_definition=self.exports if exports else ExportDefinition(),
        )


def wind_at(seconds: float, turbine: str) -> float:
    """The wind in meters per second, without gusts."""
    return 8 + 3 * math.sin(seconds / 60 + _PHASES[turbine])


def rotor_angle_at(seconds: float) -> float:
    """The angle of the first turbine's rotor in radians, at the mean wind."""
    return seconds * math.tau * _TURNS_PER_METRE * 8 / 60


def _power_at(wind: float) -> float:
    return round(min(_RATED_KW, 1.9 * max(wind, 0.0) ** 3), 1)


def _encode(seconds: float, **reading: float) -> list[bytes]:
    return [json.dumps({"time": round(seconds, 3), **reading}).encode()]


def _turbine(name: str) -> Callable[[float], list[bytes]]:
    def measure(seconds: float) -> list[bytes]:
        wind = wind_at(seconds, name) + random.gauss(0, 0.4)
        return _encode(
            seconds,
            windSpeed=round(wind, 2),
            rotorSpeed=round(_TURNS_PER_METRE * wind, 2),
            powerKw=_power_at(wind),
        )

    return measure


def _weather(seconds: float) -> list[bytes]:
    return _encode(
        seconds,
        temperature=round(11 + 4 * math.sin(seconds / 300), 2),
        pressure=round(1013 + random.gauss(0, 0.3), 2),
    )


def _vibrations(seconds: float) -> list[bytes]:
    """The measurements since the last append, in binary format."""
    times = (seconds - back / _VIBRATIONS_PER_SECOND for back in range(_VIBRATIONS_PER_APPEND))
    return [
        VIBRATION.pack(
            time,
            0.8 * math.sin(math.tau * 7 * time) + random.gauss(0, 0.1),
            0.3 * math.sin(math.tau * 11 * time) + random.gauss(0, 0.1),
        )
        for time in reversed(list(times))
    ]


def _asset_values(seconds: float) -> list[bytes]:
    """Entries for SiteWise: the power of each turbine, and whether it runs."""
    entries = []
    for name in _PHASES:
        wind = wind_at(seconds, name)
        entries += [
            _entry(name, "power", Variant(double_value=_power_at(wind)), seconds),
            _entry(name, "running", Variant(boolean_value=wind > _CUT_IN), seconds),
        ]
    return entries


def _entry(turbine: str, name: str, value: Variant, seconds: float) -> bytes:
    whole, nanos = divmod(int(seconds * 1000) * 1_000_000, 10**9)
    return Util.validate_and_serialize_to_json_bytes(
        PutAssetPropertyValueEntry(
            entry_id=str(uuid4()),
            property_alias=f"/wind-farm/{turbine}/{name}",
            property_values=[
                AssetPropertyValue(
                    value=value,
                    timestamp=TimeInNanos(time_in_seconds=whole, offset_in_nanos=nanos),
                    quality=Quality.GOOD,
                )
            ],
        )
    )


def _to_kinesis(stream: str, priority: int | None) -> ExportDefinition:
    config = KinesisConfig("to-kinesis", kinesis_stream_name=stream, priority=priority)
    return ExportDefinition(kinesis=[config])


DEVICES = (
    Device("turbine-1", 0.1, _turbine("turbine-1"), _to_kinesis("wind-farm", 1)),
    Device("turbine-2", 0.1, _turbine("turbine-2"), _to_kinesis("wind-farm", 5)),
    Device("turbine-3", 0.25, _turbine("turbine-3"), _to_kinesis("wind-farm", 10)),
    Device(
        "weather-mast",
        1.0,
        _weather,
        ExportDefinition(iot_analytics=[IoTAnalyticsConfig("to-channel", iot_channel="weather")]),
        16 * _MEBIBYTE,
    ),
    Device(
        "vibration",
        _VIBRATIONS_PER_APPEND / _VIBRATIONS_PER_SECOND,
        _vibrations,
        _to_kinesis("vibration", None),
        16 * _MEBIBYTE,
        _HOUR_MILLIS,
    ),
    Device(
        "asset-values",
        2.0,
        _asset_values,
        ExportDefinition(iot_sitewise=[IoTSiteWiseConfig("to-sitewise", priority=5)]),
        16 * _MEBIBYTE,
    ),
)

STREAMS = tuple(device.stream for device in DEVICES)
