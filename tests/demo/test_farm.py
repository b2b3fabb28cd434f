"""The sensors of the wind farm with a broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from penstock import StreamManagerClient
from penstock.demo.devices import DEVICES, STREAMS
from penstock.demo.farm import run_farm
from tests.demo.background import in_background, newest
from tests.support import LocalBroker, wait_until


def farm(root: Path, *, exports: bool = False) -> Callable[[threading.Event], None]:
    return partial(run_farm, root, exports=exports)


def test_devices_append_at_their_own_rates(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, StreamManagerClient(root=broker.root) as client:
        with in_background(farm(broker.root)):
            wait_until(lambda: newest(client, "turbine-1") >= 5)
        assert newest(client, "vibration") > newest(client, "turbine-1")
        assert newest(client, "turbine-1") > newest(client, "weather-mast") >= 0
        readings = [json.loads(message.payload) for message in client.read_all("turbine-1")]
        assert all({"time", "windSpeed", "rotorSpeed", "powerKw"} == set(r) for r in readings)
        assert [r["time"] for r in readings] == sorted(r["time"] for r in readings)


def test_devices_reconnect_to_a_restarted_broker(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with in_background(farm(root)):
        for _ in range(2):
            with LocalBroker(root), StreamManagerClient(root=root) as client:
                before = newest(client, "turbine-1")
                wait_until(lambda c=client, n=before: newest(c, "turbine-1") > n)  # type: ignore[misc]


def test_deleted_stream_is_created_again(tmp_path: Path) -> None:
    with (
        LocalBroker(tmp_path / "root") as broker,
        StreamManagerClient(root=broker.root) as client,
        in_background(farm(broker.root)),
    ):
        wait_until(lambda: newest(client, "turbine-2") >= 0)
        client.delete_message_stream("turbine-2")
        wait_until(lambda: newest(client, "turbine-2") >= 0)


@pytest.mark.parametrize("exports", [True, False])
def test_devices_have_exports_with_a_cloud(tmp_path: Path, exports: bool) -> None:
    with LocalBroker(tmp_path / "root") as broker, StreamManagerClient(root=broker.root) as client:
        with in_background(farm(broker.root, exports=exports)):
            wait_until(lambda: newest(client, STREAMS[-1]) >= 0)
        found = {
            name: list(client.describe_message_stream(name).definition.exports())
            for name in client.list_streams()
        }

    assert found == {
        device.stream: list(device.exports.configs()) if exports else [] for device in DEVICES
    }
