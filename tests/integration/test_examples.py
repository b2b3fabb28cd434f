"""The examples, run as programs on readings with known results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import MessageStreamDefinition, StrategyOnFull, StreamManagerClient
from tests.support import QUICK_JAVA, TIMEOUT_S, BrokerProcess, clean_environment, wait_until

WIND_FARM = Path(__file__).resolve().parents[2] / "examples" / "wind_farm.py"

START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
WINDOW = 10
LATENESS = 30
STRONG_WIND = 11.0
TURBINES = ("turbine-1", "turbine-2", "turbine-3")


class Reading(NamedTuple):
    """A reading of a turbine. Winds are quarters, so that sums in any order are exact."""

    turbine: str
    second: float
    wind: float

    @property
    def payload(self) -> bytes:
        reading = {"time": START + self.second, "windSpeed": self.wind, "rotorSpeed": 1.5}
        return json.dumps({**reading, "powerKw": self.power}).encode()

    @property
    def power(self) -> float:
        return 100 * self.wind


class Average(NamedTuple):
    start: int
    turbine: str
    readings: int
    wind: float
    power: float


def steady(seconds: range) -> list[Reading]:
    """Returns readings of all turbines for each second, some with strong wind."""
    return [
        Reading(turbine, second + number / 4, 5 + (second * (number + 3) % 29) / 4)
        for second in seconds
        for number, turbine in enumerate(TURBINES)
    ]


def averages_of(readings: Iterable[Reading], newest: float) -> list[Average]:
    """Returns the averages of the windows that are closed when the newest reading has this time."""
    windows = defaultdict(list)
    for reading in readings:
        windows[int(reading.second) // WINDOW * WINDOW, reading.turbine].append(reading)
    return sorted(
        Average(
            start,
            turbine,
            len(together),
            fmean(reading.wind for reading in together),
            fmean(reading.power for reading in together),
        )
        for (start, turbine), together in windows.items()
        if start + WINDOW <= newest - LATENESS
    )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "root") as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[StreamManagerClient]:
    with StreamManagerClient(root=broker.root) as stream_manager_client:
        for name in (*TURBINES, "weather-mast"):
            stream_manager_client.create_message_stream(
                MessageStreamDefinition(
                    name=name, strategy_on_full=StrategyOnFull.OverwriteOldestData
                )
            )
        yield stream_manager_client


def append(client: StreamManagerClient, readings: Iterable[Reading]) -> list[tuple[str, int]]:
    """Appends readings; returns turbine and sequence number of those with strong wind."""
    alerts = []
    for reading in readings:
        number = client.append_message(reading.turbine, reading.payload)
        if reading.wind > STRONG_WIND:
            alerts.append((reading.turbine, number))
    return alerts


@contextmanager
def wind_farm(broker: BrokerProcess, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """Runs the example in its own process group, and checks that it exits cleanly."""
    process = subprocess.Popen(
        [sys.executable, str(WIND_FARM), "--root", str(broker.root), *flags],
        cwd=broker.root.parent,
        env=clean_environment(SPARK_SUBMIT_OPTS=QUICK_JAVA),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
        output, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, output
        assert output == ""
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def stored_averages(directory: Path) -> list[Average]:
    table = pq.read_table(directory / "wind-farm" / "averages")
    for name in ("start", "end"):
        seconds = table[name].cast(pa.timestamp("s")).cast(pa.int64())
        table = table.set_column(table.schema.get_field_index(name), name, seconds)
    rows: list[dict[str, Any]] = table.to_pylist()
    assert all(row["end"] == row["start"] + WINDOW for row in rows)
    return sorted(
        Average(
            row["start"] - START, row["turbine"], row["readings"], row["windSpeed"], row["powerKw"]
        )
        for row in rows
    )


def stored_alerts(client: StreamManagerClient) -> list[tuple[str, int]]:
    alerts = [json.loads(message.payload) for message in client.read_all("alerts")]
    assert all(alert["windSpeed"] > STRONG_WIND for alert in alerts)
    return [(alert["turbine"], alert["sequence_number"]) for alert in alerts]


@pytest.mark.full
def test_wind_farm_runs_until_interrupted_and_averages_all_readings_that_are_not_late(
    broker: BrokerProcess, client: StreamManagerClient, tmp_path: Path
) -> None:
    first = steady(range(100))
    alerts = append(client, first)
    client.append_message("turbine-1", b"hello?")
    client.append_message("weather-mast", Reading("", 1_000_000, 99).payload)
    assert len(alerts) > 10

    def are_stored() -> bool:
        return "alerts" in client.list_streams() and sorted(stored_alerts(client)) == sorted(alerts)

    with wind_farm(broker) as process:
        wait_until(are_stored, "the first alerts", TIMEOUT_S)
        meanwhile = [Reading("turbine-2", 99, 12)]
        alerts += append(client, meanwhile)
        wait_until(are_stored, "the next alert", TIMEOUT_S)
        # The second batch uses the watermark of the first.
        commits = tmp_path / "wind-farm" / "checkpoints" / "averages" / "commits"
        wait_until((commits / "1").exists, "two batches of averages", TIMEOUT_S)

        os.killpg(process.pid, signal.SIGINT)  # Ctrl-C

    assert stored_averages(tmp_path) == averages_of(first, newest=99.5)
    assert sorted(stored_alerts(client)) == sorted(alerts)

    # The window that ends at second 70 is still open. Earlier windows are closed.
    in_time = [Reading("turbine-1", 69, 20), Reading("turbine-2", 61, 4)]
    too_late = [Reading("turbine-1", 59, 20), Reading("turbine-2", 3, 4)]
    later = [*in_time, *steady(range(100, 160))]
    alerts += append(client, [*too_late, *later])

    with wind_farm(broker, "--once"):
        pass

    assert stored_averages(tmp_path) == averages_of([*first, *meanwhile, *later], newest=159.5)
    assert sorted(stored_alerts(client)) == sorted(alerts)
