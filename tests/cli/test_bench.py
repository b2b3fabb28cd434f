"""`penstock bench`: its figures, and that it deletes its stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.wire.operations import Operation
from tests.support import BrokerProcess

from .command import penstock


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("bench") / "root") as broker:
        yield broker


def test_bench_prints_a_table_of_appends_and_reads(broker: BrokerProcess) -> None:
    finished = penstock("bench", "--messages", "2000", "--root", str(broker.root))

    assert finished.code == 0, finished.error
    heading, *rows = finished.output.splitlines()
    assert heading.split()[:2] == ["256-BYTE", "MESSAGES"]
    assert [row.split("  ")[0] for row in rows] == [
        "append, one at a time",
        "append, many at a time",
        "read, 1,000 at a time",
    ]


@pytest.mark.parametrize("flag", ["--memory", "--flush-on-write"])
def test_json_has_figures_for_each_kind_of_stream(broker: BrokerProcess, flag: str) -> None:
    finished = penstock(
        "bench", "--messages", "1000", "--size", "64", flag, "--json", "--root", str(broker.root)
    )

    found = json.loads(finished.output)
    assert found["messageBytes"] == 64
    assert [figure["messages"] for figure in found["figures"]] == [100, 1000, 1000]
    assert all(figure["rate"] > 0 for figure in found["figures"])


def test_bench_deletes_its_stream(broker: BrokerProcess) -> None:
    penstock("bench", "--messages", "1000", "--root", str(broker.root))

    with broker.connect() as client:
        assert client.call(Operation.ListStreams)["streams"] == []


def test_unreachable_broker_fails(tmp_path: Path) -> None:
    finished = penstock("bench", "--root", str(tmp_path), "--port", "1")

    assert finished.code == 3
    assert finished.error_lines == [
        "penstock: no stream manager answers on 127.0.0.1:1: Connection refused"
    ]
