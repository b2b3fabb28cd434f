"""The names of `from penstock import …`, for programs and for type checkers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock
from penstock import sdk

PROGRAM = """
import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import assert_type

import penstock.data
import penstock.exceptions
from penstock import (
    AssetPropertyValue,
    AsyncStreamManagerClient,
    ConnectionLostException,
    ExportDefinition,
    KinesisConfig,
    Message,
    MessageStreamDefinition,
    MessageStreamInfo,
    NotEnoughMessagesException,
    Persistence,
    PutAssetPropertyValueEntry,
    Quality,
    ReadMessagesOptions,
    S3ExportTaskDefinition,
    Statistics,
    Status,
    StatusMessage,
    StrategyOnFull,
    StreamManagerClient,
    StreamManagerException,
    TimeInNanos,
    Util,
    Variant,
)

definition = MessageStreamDefinition(
    name="s",
    max_size=2**28,
    time_to_live_millis=None,
    strategy_on_full=StrategyOnFull.OverwriteOldestData,
    persistence=Persistence.File,
    export_definition=ExportDefinition(kinesis=[KinesisConfig("k", "n")], iot_analytics=None),
)
definition.max_size = 2**29

with StreamManagerClient("127.0.0.1", 8088, 3, 60, logging.getLogger(), tls=True) as client:
    client.create_message_stream(definition)
    assert_type(client.append_message("s", b"x"), int)
    assert_type(client.append_messages("s", [b"x"], retry=True), Sequence[int])
    assert_type(client.read_messages("s", ReadMessagesOptions(0, 1)), list[Message])
    assert_type(client.read_all("s", start=-10), Iterator[Message])
    assert_type(client.tail("s"), Iterator[Message])
    assert_type(client.list_streams(), list[str])
    assert_type(client.describe_message_stream("s"), MessageStreamInfo)
    assert_type(client.statistics(), Statistics)
    assert_type(client.describe_message_stream("s").export_statuses[0].error_message, str)

entry = PutAssetPropertyValueEntry(
    "e",
    property_values=[AssetPropertyValue(Variant(double_value=1), TimeInNanos(1), Quality.GOOD)],
)
assert_type(Util.validate_and_serialize_to_json_bytes(entry), bytes)
message = Util.deserialize_json_bytes_to_obj(b"{}", StatusMessage)
assert_type(message, StatusMessage)
assert_type(message.status, Status)
assert_type(S3ExportTaskDefinition.from_dict({}), S3ExportTaskDefinition)
one: penstock.data.Message = Message("s", 0, 0, b"x")
kind: type[penstock.exceptions.StreamManagerException] = NotEnoughMessagesException


async def main() -> None:
    async with AsyncStreamManagerClient(root="/var/lib/penstock") as client:
        assert_type(await client.append_message("s", b"x"), int)
        async for message in client.tail("s", 0):
            assert_type(message, Message)
    try:
        await client.connect()
    except ConnectionLostException as error:
        assert_type(error.appended, int)
    except StreamManagerException as error:
        assert_type(error.message, str)


asyncio.run(main())
"""

WRONG_PROGRAM = """
from penstock import MessageStreamDefinition, StreamManagerClient

client = StreamManagerClient(hots="127.0.0.1")
client.append_message("s", "text")
client.create_message_stream(MessageStreamDefinition("s", strategy_on_full="RejectNewData"))
client.list_streams().missing
"""


def run_python(source: str) -> Any:
    """Runs a program in a new interpreter, and decodes the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_types(request: pytest.FixtureRequest, path: Path, source: str) -> tuple[int, str]:
    """Checks a program with `mypy --strict`; returns the exit code and the output."""
    path.write_text(source)
    assert request.config.cache is not None
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"]
    cache = request.config.cache.mkdir("mypy")
    done = subprocess.run(
        [*command, f"--cache-dir={cache}", path.name],
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_every_public_name_can_be_imported_from_the_package() -> None:
    for name in sdk.__all__:
        assert getattr(penstock, name) is getattr(sdk, name)
    assert set(sdk.__all__) <= set(dir(penstock))


def test_all_lists_every_public_name() -> None:
    public = {
        name
        for name, value in vars(sdk).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }

    assert public == set(sdk.__all__)


def test_star_import_gives_exactly_the_public_names() -> None:
    names: dict[str, Any] = {}

    exec("from penstock import *", names)

    del names["__builtins__"]
    assert names == {name: getattr(sdk, name) for name in sdk.__all__}


def test_importing_the_package_loads_nothing_until_a_name_is_used() -> None:
    loaded = run_python(
        "import json, sys\n"
        "import penstock\n"
        "def modules(): return [name for name in sys.modules if name.startswith('penstock')]\n"
        "before = modules()\n"
        "penstock.StreamManagerClient\n"
        "print(json.dumps([before, modules()]))\n"
    )

    before, after = loaded
    assert before == ["penstock"]
    assert "penstock.client.blocking" in after


def test_programs_import_neither_broker_nor_command_line() -> None:
    loaded = run_python(
        "import json, sys\nfrom penstock import *\nprint(json.dumps(list(sys.modules)))\n"
    )

    parts = {".".join(name.split(".")[:2]) for name in loaded}
    assert "penstock.client" in parts
    assert parts.isdisjoint({"penstock.broker", "penstock.store", "penstock.cli", "click", "yaml"})


def test_missing_name_raises_the_usual_errors() -> None:
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'Nothing'"):
        exec("penstock.Nothing", {"penstock": penstock})
    with pytest.raises(ImportError, match="cannot import name 'Nothing' from 'penstock'"):
        exec("from penstock import Nothing", {})


def test_sdk_version_is_the_version() -> None:
    assert penstock.__version__ == penstock.SDK_VERSION


def test_type_checker_accepts_a_correct_program(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    assert check_types(request, tmp_path / "program.py", PROGRAM) == (0, "")


def test_type_checker_finds_wrong_arguments(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    code, output = check_types(request, tmp_path / "wrong.py", WRONG_PROGRAM)

    assert code == 1
    for problem in (
        '"hots"',
        'has incompatible type "str"; expected "bytes"',
        'has incompatible type "str"; expected "StrategyOnFull"',
        '"list[str]" has no attribute "missing"',
    ):
        assert problem in output, output


def test_type_checker_finds_a_missing_name(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    code, output = check_types(request, tmp_path / "missing.py", "from penstock import Nothing\n")

    assert code == 1
    assert 'has no attribute "Nothing"' in output, output
