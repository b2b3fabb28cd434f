"""The whole demo, with and without a cloud."""

from __future__ import annotations

import logging
import queue
from functools import partial
from pathlib import Path

import pytest

from penstock import StreamManagerClient
from penstock.demo.camera import CAMERA_STREAMS, camera_directory
from penstock.demo.demo import run_demo
from penstock.demo.devices import STREAMS
from penstock.demo.outages import OutageSchedule
from penstock.sandbox.local_sandbox import Sandbox
from tests.demo.background import Lines, in_background, newest
from tests.support import TIMEOUT_S, LocalBroker, wait_until


def test_demo_with_a_cloud_runs_all_parts(tmp_path: Path) -> None:
    lines: Lines = queue.SimpleQueue()
    with (
        Sandbox() as cloud,
        LocalBroker(tmp_path / "root") as broker,
        StreamManagerClient(root=broker.root) as client,
    ):
        demo = partial(
            run_demo,
            broker.root,
            cloud=cloud,
            report=lines.put,
            outages=OutageSchedule(0.01, 1000, 1),
        )
        with in_background(demo):
            streams = {*STREAMS, *CAMERA_STREAMS}
            wait_until(lambda: set(client.list_streams()) == streams)
            for name in streams - {"camera-status"}:
                wait_until(lambda name=name: newest(client, name) >= 0)  # type: ignore[misc]
            assert lines.get(timeout=TIMEOUT_S) == "the cloud is unavailable for 1000 s"
        wait_until(lambda: not cloud.faults())


def test_demo_without_a_cloud_runs_only_sensors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalBroker(tmp_path / "root") as broker, StreamManagerClient(root=broker.root) as client:
        with in_background(partial(run_demo, broker.root, cloud=None)):
            wait_until(lambda: newest(client, STREAMS[-1]) >= 0)
        assert set(client.list_streams()) == set(STREAMS)
        infos = [client.describe_message_stream(name) for name in STREAMS]

    assert not any(list(info.definition.exports()) for info in infos)
    assert not camera_directory(broker.root).exists()


def test_outages_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.demo")
    with Sandbox() as cloud:
        schedule = OutageSchedule(0, 1000, 1)
        with in_background(partial(run_demo, tmp_path / "root", cloud=cloud, outages=schedule)):
            wait_until(cloud.faults)

    messages = [each.getMessage() for each in caplog.records if each.name == "penstock.demo"]
    assert messages == ["the cloud is unavailable for 1000 s", "the cloud is available again"]
