"""Connections to a broker that restarts, and streams that already exist."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock import StreamManagerClient
from penstock.demo.demo_streams import ensure_stream, find_missing_exports, keep_connected
from penstock.errors import InvalidRequestException
from penstock.model import (
    ExportDefinition,
    HTTPConfig,
    KinesisConfig,
    MessageStreamDefinition,
    StrategyOnFull,
)
from tests.demo.background import in_background
from tests.support import LocalBroker, wait_until

MEBIBYTE = 1024 * 1024


def kinesis(identifier: str, *, disabled: bool | None = None) -> KinesisConfig:
    return KinesisConfig(identifier, kinesis_stream_name="k", disabled=disabled)


def define(name: str, exports: ExportDefinition, mebibytes: int) -> MessageStreamDefinition:
    return MessageStreamDefinition(
        name,
        max_size=mebibytes * MEBIBYTE,
        stream_segment_size=MEBIBYTE,
        strategy_on_full=StrategyOnFull.OverwriteOldestData,
        export_definition=exports,
    )


def test_existing_exports_are_not_missing_in_any_state() -> None:
    found = ExportDefinition(kinesis=[kinesis("a", disabled=True)], http=[HTTPConfig("own", "x:")])
    wanted = ExportDefinition(kinesis=[kinesis("a"), kinesis("b")])

    assert find_missing_exports(found, wanted) == [("kinesis", kinesis("b"))]
    assert find_missing_exports(found, ExportDefinition()) == []


def test_existing_stream_gets_only_missing_exports(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "root") as broker, StreamManagerClient(root=broker.root) as client:
        paused = kinesis("a", disabled=True)
        ensure_stream(client, define("s", ExportDefinition(kinesis=[paused]), 4))
        number = client.append_message("s", b"kept")
        for _ in range(2):
            wanted = ExportDefinition(kinesis=[kinesis("a"), kinesis("b")])
            ensure_stream(client, define("s", wanted, 8))

        found = client.describe_message_stream("s").definition
        assert list(found.exports()) == [paused, kinesis("b")]
        assert found.max_size == 4 * MEBIBYTE
        (message,) = client.read_all("s")
        assert (message.sequence_number, message.payload) == (number, b"kept")


def test_client_reconnects_after_an_error(tmp_path: Path) -> None:
    failures: list[str] = []
    reached: set[str] = set()

    def work(client: StreamManagerClient) -> None:
        if not failures:
            failures.append("the first time something goes wrong")
            raise InvalidRequestException(failures[0])
        while client.connected and not stopping.wait(0.01):
            # After a quick restart, the same client may still work.
            client.list_streams()
            reached.add(client.address)

    stopping = threading.Event()

    def keep(over: threading.Event) -> None:
        keep_connected(tmp_path / "root", over, work)

    with in_background(keep):
        for _ in range(2):
            with LocalBroker(tmp_path / "root") as broker:
                wait_until(lambda port=broker.port: f"127.0.0.1:{port}" in reached)  # type: ignore[misc]
        stopping.set()
    assert failures


def test_unexpected_errors_are_raised(tmp_path: Path) -> None:
    def work(_: StreamManagerClient) -> None:
        raise ZeroDivisionError

    with LocalBroker(tmp_path / "root") as broker, pytest.raises(ZeroDivisionError):
        keep_connected(broker.root, threading.Event(), work)
