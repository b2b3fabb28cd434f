"""The tables and snippets of the guide to Spark."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from penstock import MessageStreamDefinition, StrategyOnFull, StreamManagerClient
from penstock.demo.devices import DEVICES
from penstock.spark.options import (
    BatchReadOptions,
    BrokerOptions,
    StreamReadOptions,
    WriteOptions,
    parse_options,
)
from penstock.spark.source import SCHEMA
from tests.support import QUICK_JAVA, TIMEOUT_S, BrokerProcess, clean_environment, run_program

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
KINDS: dict[str, type[BrokerOptions]] = {
    "read": BatchReadOptions,
    "readStream": StreamReadOptions,
    "write": WriteOptions,
}
MESSAGES = 40

# Appends messages twice, as a retried batch does.
STORE_TWICE = """
from penstock import StreamManagerClient

with StreamManagerClient() as client:
    payloads = [message.payload for message in client.read_all("alerts-with-ids")]
    client.append_messages("alerts-with-ids", payloads)
"""


class OptionRow(NamedTuple):
    option: str
    kinds: list[str]
    default: str


def table_of_options() -> list[OptionRow]:
    rows = re.findall(r"^\| `(\w+)` \| ([\w, ]+) \| (?:`(.*?)`)? ?\|", section("Options"), re.M)
    return [
        OptionRow(option, list(KINDS) if kinds == "all" else kinds.split(", "), default)
        for option, kinds, default in rows
    ]


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", GUIDE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("kind", KINDS)
def test_table_lists_the_options_of_each_kind_of_query(kind: str) -> None:
    named = [row.option for row in table_of_options() if kind in row.kinds]
    assert sorted(named) == sorted(KINDS[kind].__struct_encode_fields__)


@pytest.mark.parametrize("kind", KINDS)
def test_table_lists_the_defaults(kind: str) -> None:
    shown = {row.option: row.default for row in table_of_options() if kind in row.kinds}
    options = msgspec.to_builtins(parse_options({"stream": "needed"}, KINDS[kind]))
    for option in options.keys() - {"stream"}:
        default = options[option]
        text = default if isinstance(default, str) else json.dumps(default)
        assert shown[option] == ("" if default is None else text.removesuffix(".0")), option


def test_table_of_columns_matches_the_schema() -> None:
    columns = re.findall(r"^\| `(\w+)` \| (\w+) \|", section("Quick start"), re.MULTILINE)
    types = {"bigint": "long"}
    schema = [(field.name, field.dataType.simpleString()) for field in SCHEMA.fields]
    assert columns == [(name, types.get(kind, kind)) for name, kind in schema]


@pytest.mark.full
def test_snippets_run_in_sequence(tmp_path: Path) -> None:
    snippets = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(snippets) > 10
    (reading,) = (place for place, text in enumerate(snippets) if "dropDuplicates" in text)
    snippets.insert(reading, STORE_TWICE)
    program = tmp_path / "guide.py"
    program.write_text("\n".join(snippets))
    with (
        BrokerProcess(tmp_path / "root") as broker,
        StreamManagerClient(root=broker.root) as client,
    ):
        strong = append_readings(client)
        finished = run_program(
            sys.executable,
            program,
            cwd=tmp_path,
            env=clean_environment(
                STREAM_MANAGER_STORE_ROOT_DIR=str(broker.root), SPARK_SUBMIT_OPTS=QUICK_JAVA
            ),
            seconds=TIMEOUT_S,
        )
        assert finished.returncode == 0, finished.stderr
        assert finished.stderr == ""

        output = finished.stdout
        assert "3 messages, numbers 5 to 7" in output
        assert f"{strong} alerts" in output
        assert f'"next": {MESSAGES}' in output
        assert f"{MESSAGES} messages of the last hour" in output
        assert f"10 of {MESSAGES} messages" in output

        def payloads(stream: str) -> list[bytes]:
            return [message.payload for message in client.read_all(stream)]

        assert len(payloads("alerts-with-ids")) == 2 * strong
        assert payloads("notes") == [b"the rotor sounds odd"]
        assert payloads("copy-of-turbine-1") == payloads("in-order") == payloads("turbine-1")
    assert list((tmp_path / "wind-farm" / "readings").glob("*.parquet"))


def append_readings(client: StreamManagerClient) -> int:
    """Appends readings of the demo devices, and returns the number with a strong wind."""
    strong = 0
    for device in DEVICES:
        client.create_message_stream(
            MessageStreamDefinition(
                name=device.stream, strategy_on_full=StrategyOnFull.OverwriteOldestData
            )
        )
        for number in range(MESSAGES):
            time = 1_767_225_600 + number
            payload = device.measure(time)[0]
            client.append_message(device.stream, payload)
            if device.stream.startswith("turbine-"):
                strong += json.loads(payload)["windSpeed"] > 5
    return strong
