"""Runs the sensors: each appends at its own rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from penstock.client.blocking import StreamManagerClient
from penstock.demo.demo_streams import ensure_stream, keep_connected
from penstock.demo.devices import DEVICES, Device


def run_farm(
    root: Path, stopping: threading.Event, *, exports: bool, devices: Sequence[Device] = DEVICES
) -> None:
    """Appends until the event is set. Reconnects to a broker that was unavailable."""
    keep_connected(root, stopping, partial(_append, stopping, exports, devices))


def _append(
    stopping: threading.Event,
    exports: bool,
    devices: Sequence[Device],
    client: StreamManagerClient,
) -> None:
    for device in devices:
        ensure_stream(client, device.define(exports=exports))
    due = {device.stream: time.monotonic() for device in devices}
    device = devices[0]
    while not stopping.wait(max(0.0, due[device.stream] - time.monotonic())):
        messages = device.measure(time.time())
        if len(messages) == 1:
            client.append_message(device.stream, messages[0])
        else:
            client.append_messages(device.stream, messages)
        # Missed measurements are not repeated.
        due[device.stream] = max(due[device.stream] + device.seconds_between, time.monotonic())
        device = min(devices, key=lambda it: due[it.stream])
