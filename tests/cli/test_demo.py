"""The demo devices: plausible measurements, on a broker that may have seen them before."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Self

import pytest

from penstock import StreamManagerClient
from penstock.cli.demo import DEVICES, Device, run_demo
from penstock.testing.connection import Connection
from penstock.wire.operations import Operation
from tests.support import PATIENCE_S, LocalBroker, read, wait_until


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.stream)
def test_a_device_measures_plausible_numbers(device: Device) -> None:
    for seconds in range(0, 3600, 60):
        reading = device.measure(float(seconds))
        assert all(-50 <= value <= 2000 for value in reading.values())
        json.dumps(reading, allow_nan=False)


class Demo:
    """The devices while they append, in a thread."""

    def __init__(self, root: Path, *, exports: bool = False) -> None:
        self.is_over = threading.Event()
        self.thread = threading.Thread(
            target=run_demo, args=(root, self.is_over), kwargs={"exports": exports}, daemon=True
        )

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


def newest(client: Connection, name: str) -> int:
    streams = client.call(Operation.Statistics)["statistics"]["streams"]
    return max((it["newestSequenceNumber"] for it in streams if it["name"] == name), default=-1)


def test_devices_append_at_their_own_rates_until_it_is_over(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, broker.connect() as client:
        with Demo(broker.root):
            wait_until(lambda: newest(client, "turbine-1") >= 5)
        assert newest(client, "turbine-1") > newest(client, "weather-mast") >= 0
        messages = read(client, "turbine-1", minMessageCount=5)
        readings = [json.loads(message["payload"]) for message in messages]
        assert all({"time", "windSpeed", "rotorSpeed", "powerKw"} == set(r) for r in readings)
        assert [r["time"] for r in readings] == sorted(r["time"] for r in readings)


def test_devices_wait_for_a_broker_and_come_back_to_one_that_was_away(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with Demo(root):
        for _ in range(2):
            with LocalBroker(root) as broker, broker.connect() as client:
                before = newest(client, "turbine-1")
                wait_until(lambda c=client, n=before: newest(c, "turbine-1") > n)  # type: ignore[misc]


@pytest.mark.parametrize("exports", [True, False])
def test_devices_have_exports_where_there_is_a_cloud(tmp_path: Path, exports: bool) -> None:
    with LocalBroker(tmp_path / "root") as broker, StreamManagerClient(root=broker.root) as client:
        with Demo(broker.root, exports=exports):
            wait_until(lambda: len(client.list_streams()) == len(DEVICES))
        kinds = {
            name: [
                kind
                for kind, _ in client.describe_message_stream(
                    name
                ).definition.export_definition.configs_by_kind()
            ]
            for name in client.list_streams()
        }

    if exports:
        assert kinds["turbine-1"] == ["kinesis"]
        assert kinds["weather-mast"] == ["iot_analytics"]
    else:
        assert not any(kinds.values())
