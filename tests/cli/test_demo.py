"""The demo devices: plausible measurements, on a broker that may have seen them before."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from penstock.cli.demo import DEVICES, Device, run_demo
from penstock.errors import ConnectFailedException
from penstock.wire.operations import Operation
from tests.support import LocalBroker, read, wait_until


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.stream)
def test_a_device_measures_plausible_numbers(device: Device) -> None:
    for seconds in range(0, 3600, 60):
        reading = device.measure(float(seconds))
        assert all(-50 <= value <= 2000 for value in reading.values())
        json.dumps(reading, allow_nan=False)


def test_devices_append_at_their_own_rates_until_the_broker_is_gone(tmp_path: Path) -> None:
    ended: list[BaseException] = []

    def run(root: Path) -> None:
        try:
            run_demo(root)
        except ConnectionError as error:
            ended.append(error)

    with LocalBroker(tmp_path / "root") as broker:
        thread = threading.Thread(target=run, args=(broker.root,), daemon=True)
        thread.start()
        with broker.connect() as client:

            def newest(name: str) -> int:
                streams = client.call(Operation.Statistics)["statistics"]["streams"]
                return max(
                    (s["newestSequenceNumber"] for s in streams if s["name"] == name), default=-1
                )

            wait_until(lambda: newest("turbine-1") >= 5)
            assert newest("turbine-1") > newest("weather-mast") >= 0
            messages = read(client, "turbine-1", minMessageCount=5)
            readings = [json.loads(message["payload"]) for message in messages]
            assert all({"time", "windSpeed", "rotorSpeed", "powerKw"} == set(r) for r in readings)
            assert [r["time"] for r in readings] == sorted(r["time"] for r in readings)
    thread.join(10)
    assert len(ended) == 1


def test_without_a_token_the_demo_does_not_start(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker:
        (broker.root / "token").unlink()
        with pytest.raises(ConnectFailedException):
            run_demo(broker.root)
