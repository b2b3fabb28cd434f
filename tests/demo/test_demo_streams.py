"""Streams that may be there from an earlier run, on a broker that goes and comes."""

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
from tests.demo.beside import beside
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


def test_exports_that_are_there_are_not_missing_whatever_their_state() -> None:
    found = ExportDefinition(kinesis=[kinesis("a", disabled=True)], http=[HTTPConfig("own", "x:")])
    wanted = ExportDefinition(kinesis=[kinesis("a"), kinesis("b")])

    assert find_missing_exports(found, wanted) == [("kinesis", kinesis("b"))]
    assert find_missing_exports(found, ExportDefinition()) == []


def test_a_stream_is_created_and_later_only_given_what_it_lacks(tmp_path: Path) -> None:
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


def test_a_broker_is_waited_for_and_reached_again_after_an_error(tmp_path: Path) -> None:
    failures: list[str] = []
    reached: set[str] = set()

    def work(client: StreamManagerClient) -> None:
        if not failures:
            failures.append("the first time something goes wrong")
            raise InvalidRequestException(failures[0])
        while client.connected and not is_over.wait(0.01):
            # One that is back before anybody noticed is reached by the same client.
            client.list_streams()
            reached.add(client.address)

    is_over = threading.Event()

    def keep(over: threading.Event) -> None:
        keep_connected(tmp_path / "root", over, work)

    with beside(keep):
        for _ in range(2):
            with LocalBroker(tmp_path / "root") as broker:
                wait_until(lambda port=broker.port: f"127.0.0.1:{port}" in reached)  # type: ignore[misc]
        is_over.set()
    assert failures


def test_what_nobody_expects_is_not_hidden(tmp_path: Path) -> None:
    def work(_: StreamManagerClient) -> None:
        raise ZeroDivisionError

    with LocalBroker(tmp_path / "root") as broker, pytest.raises(ZeroDivisionError):
        keep_connected(broker.root, threading.Event(), work)
