"""The wind farm at work: each sensor appends at its own rate."""

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
    root: Path, is_over: threading.Event, *, exports: bool, devices: Sequence[Device] = DEVICES
) -> None:
    """Appends until it is over, also to a broker that was away for a while."""
    keep_connected(root, is_over, partial(_append, is_over, exports, devices))


def _append(
    is_over: threading.Event,
    exports: bool,
    devices: Sequence[Device],
    client: StreamManagerClient,
) -> None:
    for device in devices:
        ensure_stream(client, device.define(exports=exports))
    due = {device.stream: time.monotonic() for device in devices}
    device = devices[0]
    while not is_over.wait(max(0.0, due[device.stream] - time.monotonic())):
        messages = device.measure(time.time())
        if len(messages) == 1:
            client.append_message(device.stream, messages[0])
        else:
            client.append_messages(device.stream, messages)
        # What could not be measured in time is not made up for.
        due[device.stream] = max(due[device.stream] + device.seconds_between, time.monotonic())
        device = min(devices, key=lambda it: due[it.stream])
