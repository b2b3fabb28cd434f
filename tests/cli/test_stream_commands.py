"""`penstock streams` with a running broker."""

from __future__ import annotations

import json
import os
import pty
import shlex
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.store.rows import ExportProgress
from penstock.wire.operations import Operation
from tests.model.samples import NO_EXPORTS
from tests.support import (
    PENSTOCK,
    TIMEOUT_S,
    BrokerProcess,
    LocalBroker,
    append,
    clean_environment,
    create,
)

from .command import Finished, penstock, penstock_process
from .samples import FULL, SNAKE_CASE_TOML, write


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path_factory.mktemp("streams") / "root") as broker:
        yield broker


@pytest.fixture(autouse=True)
def without_streams(request: pytest.FixtureRequest) -> None:
    """Each test starts without streams."""
    if "broker" in request.fixturenames:
        with request.getfixturevalue("broker").connect() as client:
            for name in client.call(Operation.ListStreams)["streams"]:
                client.call(Operation.DeleteMessageStream, name=name)


def streams(broker: LocalBroker | BrokerProcess, *words: str, token: str = "") -> Finished:
    root = str(broker.root)
    return penstock("streams", *words, "--root", root, AWS_CONTAINER_AUTHORIZATION_TOKEN=token)


def succeed(broker: LocalBroker, *words: str) -> str:
    finished = streams(broker, *words)
    assert finished.code == 0, finished.error
    assert finished.error == ""
    return finished.output


def info_of(broker: LocalBroker, name: str) -> dict[str, Any]:
    """The description of the stream from the broker, without the command."""
    with broker.connect() as client:
        info: dict[str, Any] = client.call(Operation.DescribeMessageStream, name=name)[
            "messageStreamInfo"
        ]
    return info


def definition_of(broker: LocalBroker, name: str) -> dict[str, Any]:
    definition: dict[str, Any] = info_of(broker, name)["definition"]
    return definition


def names_in(broker: LocalBroker) -> list[str]:
    with broker.connect() as client:
        names: list[str] = client.call(Operation.ListStreams)["streams"]
    return names


def with_input(broker: LocalBroker, text: str, *words: str) -> Finished:
    finished = subprocess.run(
        [str(PENSTOCK), "streams", *words, "--root", str(broker.root)],
        input=text,
        cwd="/",
        env=clean_environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    return Finished(finished.returncode, finished.stdout, finished.stderr)


# create


def test_create_uses_defaults(broker: LocalBroker) -> None:
    assert succeed(broker, "create", "s") == "created s\n"

    assert definition_of(broker, "s") == {
        "name": "s",
        "maxSize": 268_435_456,
        "streamSegmentSize": 16_777_216,
        "strategyOnFull": 1,
        "persistence": 0,
        "flushOnWrite": False,
        "exportDefinition": NO_EXPORTS,
    }


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--max-size", "1GB"], "maxSize", 1_000_000_000),
        (["--max-size", "64MiB"], "maxSize", 64 << 20),
        (["--segment-size", "2048"], "streamSegmentSize", 2048),
        (["--ttl", "90s"], "timeToLiveMillis", 90_000),
        (["--ttl", "7d"], "timeToLiveMillis", 604_800_000),
        (["--on-full", "reject"], "strategyOnFull", 0),
        (["--on-full", "overwrite"], "strategyOnFull", 1),
        (["--on-full", "RejectNewData"], "strategyOnFull", 0),
        (["--on-full", "OverwriteOldestData"], "strategyOnFull", 1),
        (["--persistence", "memory"], "persistence", 1),
        (["--persistence", "File"], "persistence", 0),
        (["--flush-on-write"], "flushOnWrite", True),
        (["--no-flush-on-write"], "flushOnWrite", False),
    ],
)
def test_create_option_sets_its_field(
    broker: LocalBroker, words: list[str], field: str, value: object
) -> None:
    succeed(broker, "create", "s", *words)

    assert definition_of(broker, "s")[field] == value


def test_create_options_add_exports(broker: LocalBroker) -> None:
    succeed(
        broker,
        *("create", "s"),
        *("--kinesis", "k1=one", "--kinesis", "k2=two"),
        *("--iot-analytics", "i=channel"),
        *("--sitewise", "w"),
        *("--s3", "f"),
        *("--http", "h=http://localhost/?a=b"),
    )

    assert definition_of(broker, "s")["exportDefinition"] == {
        **NO_EXPORTS,
        "kinesis": [
            {"identifier": "k1", "kinesisStreamName": "one"},
            {"identifier": "k2", "kinesisStreamName": "two"},
        ],
        "iotAnalytics": [{"identifier": "i", "iotChannel": "channel"}],
        "IotSitewise": [{"identifier": "w"}],
        "s3TaskExecutor": [{"identifier": "f"}],
        "http": [{"identifier": "h", "uri": "http://localhost/?a=b"}],
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["s", "--max-size", "12q"], "'--max-size': '12q' is not a size: expected a number and"),
        (["s", "--max-size", "10"], "maxSize is 10: expected int >= 1024"),
        (["s", "--ttl", "90"], "'--ttl': '90' is not a duration: expected numbers with"),
        (["s", "--ttl", "1s"], "'--ttl': '1s': expected at least 1min"),
        (["s", "--on-full", "drop"], "'drop' is not one of 'reject', 'overwrite'.\n"),
        (["s", "--kinesis", "k"], "'--kinesis': 'k': expected ID=STREAM"),
        (["s", "--kinesis", "k="], "'--kinesis': 'k=': expected ID=STREAM"),
        (["s", "--http", "=u"], "'--http': '=u': expected ID=URI"),
        (["s", "--http", "h=ftp://a/"], "'ftp://a/': expected a URI that begins with http:// or"),
        (["s", "--sitewise", ""], "'--sitewise': '': expected ID"),
        (["s", "--s3", "a/b"], "exportDefinition.s3TaskExecutor[0].identifier is 'a/b'"),
        (["s", "--s3", "a", "--sitewise", "a"], "the identifier 'a' is used twice"),
        (["a/b"], "name is 'a/b'"),
        ([], "Name the stream, or give a definition with --file"),
        (["--file", "x.toml", "--ttl", "2h", "--s3", "f"], "put --ttl, --s3 into the file"),
        (["--file", "nowhere.toml"], "nowhere.toml cannot be read: No such file"),
    ],
)
def test_invalid_option_creates_nothing(
    broker: LocalBroker, words: list[str], message: str
) -> None:
    finished = streams(broker, "create", *words)

    assert finished.code == 2
    assert message in finished.error
    assert finished.output == ""
    assert names_in(broker) == []


def test_create_of_an_existing_stream_fails(broker: LocalBroker) -> None:
    succeed(broker, "create", "s", "--ttl", "2h")

    again = streams(broker, "create", "s")

    assert again.code == 1
    assert again.error_lines == ["penstock: the message stream already exists"]
    assert definition_of(broker, "s")["timeToLiveMillis"] == 7_200_000


def test_create_prints_the_description_as_json(broker: LocalBroker) -> None:
    printed = json.loads(succeed(broker, "create", "s", "--s3", "f", "--json"))

    assert printed == info_of(broker, "s")


def test_create_dry_run_needs_no_broker(tmp_path: Path) -> None:
    words = ["create", "s", "--ttl", "1h", "--s3", "f", "--dry-run"]

    finished = penstock("streams", *words, "--root", str(tmp_path))

    assert finished.code == 0
    assert json.loads(finished.output) == {
        "name": "s",
        "maxSize": 268_435_456,
        "streamSegmentSize": 16_777_216,
        "timeToLiveMillis": 3_600_000,
        "strategyOnFull": 1,
        "persistence": 0,
        "flushOnWrite": False,
        "exportDefinition": {"s3TaskExecutor": [{"identifier": "f"}]},
    }


def test_create_dry_run_creates_no_stream(broker: LocalBroker, tmp_path: Path) -> None:
    printed = succeed(broker, "create", "s", "--s3", "f", "--dry-run")
    assert names_in(broker) == []
    (tmp_path / "s.json").write_text(printed)

    succeed(broker, "create", "--file", str(tmp_path / "s.json"))

    assert definition_of(broker, "s")["exportDefinition"]["s3TaskExecutor"] == [{"identifier": "f"}]


def test_unreachable_broker_fails_with_one_line(tmp_path: Path) -> None:
    for words in (["list"], ["create", "s"], ["describe", "s"], ["delete", "s", "--yes"]):
        finished = penstock("streams", *words, "--root", str(tmp_path))

        assert finished.code == 3
        assert len(finished.error_lines) == 1


def test_consumer_may_not_change_streams(broker: LocalBroker) -> None:
    made = penstock(
        *("tokens", "create", "reader", "--role", "consumer", "--root", str(broker.root))
    )
    token = made.output.strip()
    succeed(broker, "create", "s", "--s3", "f")
    before = info_of(broker, "s")

    def attempt(*words: str) -> Finished:
        return streams(broker, *words, token=token)

    for operation, words in (
        ("Create", ["create", "other"]),
        ("Update", ["update", "s", "--ttl", "1h"]),
        ("Delete", ["delete", "s", "--yes", "--json"]),
    ):
        rejected = attempt(*words)
        assert rejected.code == 4
        assert rejected.error_lines == [
            f"penstock: the role consumer does not allow {operation}MessageStream; "
            "these roles do: admin"
        ]
        assert rejected.output == ""
    assert json.loads(attempt("describe", "s", "--json").output) == before
    assert names_in(broker) == ["s"]


# create, from files


@pytest.fixture
def statuses(broker: LocalBroker) -> None:
    """The status stream that the full definition names."""
    with broker.connect() as client:
        create(client, "statuses")


def test_create_from_a_file_with_names_of_the_sdk(
    broker: LocalBroker, statuses: None, tmp_path: Path
) -> None:
    (tmp_path / "full.toml").write_text(SNAKE_CASE_TOML)

    assert succeed(broker, "create", "--file", str(tmp_path / "full.toml")) == "created full\n"

    wanted = FULL.as_dict()
    wanted["exportDefinition"] = {**NO_EXPORTS, **wanted["exportDefinition"]}
    assert definition_of(broker, "full") == wanted


@pytest.mark.parametrize("extension", ["json", "yaml", "toml"])
def test_described_definition_recreates_the_stream(
    broker: LocalBroker, statuses: None, tmp_path: Path, extension: str
) -> None:
    (tmp_path / "full.toml").write_text(SNAKE_CASE_TOML)
    succeed(broker, "create", "--file", str(tmp_path / "full.toml"))
    described = json.loads(succeed(broker, "describe", "full", "--json"))
    file = write(tmp_path, extension, described["definition"])
    succeed(broker, "delete", "full", "--yes")

    succeed(broker, "create", "full", "--file", file)

    assert json.loads(succeed(broker, "describe", "full", "--json")) == described


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "s",\n\t"strategyOnFull": 0}',
        "name: s\nstrategy_on_full: RejectNewData\n",
    ],
)
def test_standard_input_is_json_or_yaml(broker: LocalBroker, text: str) -> None:
    finished = with_input(broker, text, "create", "--file", "-")

    assert (finished.code, finished.output) == (0, "created s\n")
    assert definition_of(broker, "s")["strategyOnFull"] == 0


def test_unknown_field_creates_no_stream(broker: LocalBroker) -> None:
    text = yaml.safe_dump(
        {"name": "s", "export_definition": {"kinesis": [{"kinesis_stream": "x"}]}}
    )

    finished = with_input(broker, text, "create", "--file", "-")

    assert finished.code == 2
    assert finished.error_lines == [
        "penstock: standard input: export_definition.kinesis[0].kinesis_stream: there is no such "
        "field; did you mean kinesis_stream_name?"
    ]
    assert names_in(broker) == []


def test_error_of_the_server_is_printed(broker: LocalBroker, tmp_path: Path) -> None:
    (tmp_path / "full.toml").write_text(SNAKE_CASE_TOML)

    finished = streams(broker, "create", "--file", str(tmp_path / "full.toml"))

    assert finished.code == 1
    assert "the status stream 'statuses' does not exist; create it first" in finished.error
    assert len(finished.error_lines) == 1


# list


def test_list_prints_a_table(broker: LocalBroker) -> None:
    succeed(broker, "create", "bb", "--persistence", "memory", "--on-full", "reject")
    succeed(broker, "create", "aa", "--max-size", "1MiB", "--s3", "f", "--kinesis", "k=x")
    with broker.connect() as client:
        for _ in range(3):
            append(client, "aa", b"x" * 1000)
    size = info_of(broker, "aa")["storageStatus"]["totalBytes"]

    heading, first, second = succeed(broker, "list").splitlines()

    assert heading.split("  ")[0] == "NAME"
    assert "OLDEST..NEWEST" in heading
    assert first.split() == [
        *("aa", "3", "0..2", f"{size / 1024:.3g}", "KiB", "1", "MiB", "file", "overwrite", "2")
    ]
    assert second.split() == [*("bb", "0", "-", "0", "B", "256", "MiB", "memory", "reject", "0")]


def test_list_prints_json(broker: LocalBroker) -> None:
    succeed(broker, "create", "b", "--s3", "f")
    succeed(broker, "create", "a")

    listed = json.loads(succeed(broker, "list", "--json"))

    assert listed == [info_of(broker, "a"), info_of(broker, "b")]


def test_empty_list_prints_a_hint(broker: LocalBroker) -> None:
    finished = streams(broker, "list")

    assert finished.code == 0
    assert finished.output == ""
    assert "penstock streams create NAME" in finished.error
    assert succeed(broker, "list", "--json") == "[]\n"


def test_unreadable_stream_does_not_hide_the_others(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as broker, broker.connect() as client:
        create(client, "broken")
        create(client, "kept")
    with sqlite3.connect(broker.root / "catalog.sqlite") as catalog:
        catalog.execute("UPDATE stream SET definition = CAST('{' AS BLOB) WHERE name = 'broken'")
    catalog.close()
    for copy in (broker.root / "streams").glob("*/stream.json"):
        if json.loads(copy.read_text())["name"] == "broken":
            copy.unlink()
    (broker.root / "catalog.backup.sqlite").unlink()
    with broker:
        table = streams(broker, "list")
        listed = streams(broker, "list", "--json")
        deleted = streams(broker, "delete", "broken", "--yes")
        after = streams(broker, "list")

    assert (table.code, listed.code, deleted.code, after.code) == (1, 1, 0, 0)
    assert "kept" in table.output
    assert len(table.error_lines) == 1
    assert "the message stream 'broken' cannot be read" in table.error
    assert [info["definition"]["name"] for info in json.loads(listed.output)] == ["kept"]


# describe


def test_describe_shows_definition_and_exports(broker: LocalBroker) -> None:
    succeed(broker, "create", "s", "--ttl", "1h 30min", "--kinesis", "k=cloud", "--s3", "f")
    with broker.connect() as client:
        for _ in range(10):
            append(client, "s", b"x" * 1000)
    progress = ExportProgress("k", 3, 1_700_000_000_000, "slow\n\x1b[2Jdown", 2048, 4)
    broker.run(lambda: broker.broker._store.commit_progress({"s": [progress]}))
    succeed(broker, "update", "s", "--pause", "k")

    about, kinesis, s3 = (
        [" ".join(line.split()) for line in part.splitlines()]
        for part in succeed(broker, "describe", "s").split("\n\n")
    )

    assert {"name s", "messages 10 (0..9)", "time to live 1 h 30 min"} <= set(about)
    assert kinesis == [
        "export k",
        "kind kinesis",
        "state paused",
        "kinesis stream name cloud",
        "exported 4 messages, 2 KiB (until 3)",
        "behind 6 messages",
        "last export 2023-11-14 22:13:20+00:00",
        "last error slow [2Jdown",
    ]
    assert s3[0] == "export f"
    assert "behind 10 messages" in s3


@pytest.mark.parametrize(
    "words",
    [["describe", "s"], ["update", "s", "--ttl", "1h"], ["delete", "s", "--yes"]],
)
def test_missing_stream_fails(broker: LocalBroker, words: list[str]) -> None:
    for more in ([], ["--json"]):
        finished = streams(broker, *words, *more)

        assert finished.code == 5
        assert finished.error_lines == ["penstock: the message stream 's' does not exist"]
        assert finished.output == ""


# update


def test_update_changes_named_fields_and_keeps_export_progress(
    broker: LocalBroker, statuses: None, tmp_path: Path
) -> None:
    (tmp_path / "full.toml").write_text(SNAKE_CASE_TOML)
    succeed(broker, "create", "--file", str(tmp_path / "full.toml"))
    with broker.connect() as client:
        for _ in range(10):
            append(client, "full", b"x")
    progress = [ExportProgress("k1", 6, 1000, "slow", 70, 7), ExportProgress("h", 4, 2000)]
    broker.run(lambda: broker.broker._store.commit_progress({"full": progress}))
    before = info_of(broker, "full")

    output = succeed(broker, "update", "full", "--max-size", "2GB", "--no-flush-on-write")

    assert output.splitlines() == [
        "updated full",
        "  max size: 1 GB -> 2 GB",
        "  flush on write: yes -> no",
    ]
    after = info_of(broker, "full")
    assert after["definition"] == {
        **before["definition"],
        "maxSize": 2_000_000_000,
        "flushOnWrite": False,
    }
    assert after["exportStatuses"] == before["exportStatuses"]
    assert {status["lastExportedSequenceNumber"] for status in after["exportStatuses"]} >= {6, 4}


def test_update_reports_changes_of_exports(broker: LocalBroker) -> None:
    succeed(broker, "create", "s", "--kinesis", "a=one", "--s3", "b", "--sitewise", "c")
    progress = ExportProgress("a", -1, 1000, "slow")
    broker.run(lambda: broker.broker._store.commit_progress({"s": [progress]}))

    output = succeed(
        broker,
        *("update", "s", "--pause", "a", "--remove-export", "b"),
        *("--remove-export", "c", "--s3", "c", "--http", "d=http://x", "--ttl", "1h"),
    )

    assert sorted(output.splitlines()) == [
        "  export a, state: active -> paused",
        "  export b: removed",
        "  export c, kind: iot_sitewise -> s3_task_executor",
        "  export d: added",
        "  time to live: none -> 1 h",
        "updated s",
    ]
    assert definition_of(broker, "s")["exportDefinition"] == {
        **NO_EXPORTS,
        "http": [{"identifier": "d", "uri": "http://x"}],
        "kinesis": [{"identifier": "a", "kinesisStreamName": "one", "disabled": True}],
        "s3TaskExecutor": [{"identifier": "c"}],
    }
    statuses = {
        status["exportConfigIdentifier"]: status
        for status in info_of(broker, "s")["exportStatuses"]
    }
    assert statuses.keys() == {"a", "c", "d"}
    assert statuses["a"]["errorMessage"] == "slow"

    assert succeed(broker, "update", "s", "--resume", "a", "--ttl", "none").splitlines() == [
        "updated s",
        "  time to live: 1 h -> none",
        "  export a, state: paused -> active",
    ]
    assert "timeToLiveMillis" not in definition_of(broker, "s")


def test_update_without_changes_prints_nothing_changed(broker: LocalBroker) -> None:
    succeed(broker, "create", "s", "--ttl", "1h")

    assert succeed(broker, "update", "s", "--ttl", "60min") == "nothing changed in s\n"


def test_update_prints_the_description_as_json(broker: LocalBroker) -> None:
    succeed(broker, "create", "s")

    printed = json.loads(succeed(broker, "update", "s", "--ttl", "1h", "--json"))

    assert printed["definition"]["timeToLiveMillis"] == 3_600_000
    assert printed == info_of(broker, "s")


def test_update_from_a_file_replaces_the_definition(broker: LocalBroker, tmp_path: Path) -> None:
    succeed(broker, "create", "s", "--ttl", "1h", "--max-size", "1GB", "--kinesis", "k=x")
    export = {"identifier": "k", "kinesis_stream_name": "x", "batch_size": 5}
    file = write(
        tmp_path,
        "toml",
        {"name": "s", "strategy_on_full": 0, "export_definition": {"kinesis": [export]}},
    )

    assert succeed(broker, "update", "--file", file).splitlines() == [
        "updated s",
        "  max size: 1 GB -> 256 MiB",
        "  time to live: 1 h -> none",
        "  strategy on full: OverwriteOldestData -> RejectNewData",
        "  export k, batch size: default -> 5",
    ]
    assert succeed(broker, "update", "s", "--file", file) == "nothing changed in s\n"


def test_update_dry_run_changes_nothing(broker: LocalBroker, tmp_path: Path) -> None:
    succeed(broker, "create", "s", "--kinesis", "k=x")
    before = info_of(broker, "s")
    file = write(tmp_path, "json", {"strategyOnFull": 0})

    by_flags = json.loads(succeed(broker, "update", "s", "--pause", "k", "--dry-run"))
    by_file = json.loads(succeed(broker, "update", "s", "--file", file, "--dry-run"))

    assert by_flags["exportDefinition"]["kinesis"][0]["disabled"] is True
    assert by_flags["maxSize"] == before["definition"]["maxSize"]
    assert (by_file["name"], by_file["strategyOnFull"]) == ("s", 0)
    assert info_of(broker, "s") == before


def test_update_dry_run_from_a_file_needs_no_broker(tmp_path: Path) -> None:
    file = write(tmp_path, "json", {"name": "s", "strategyOnFull": 0})

    finished = penstock("streams", "update", "--file", file, "--dry-run", "--root", str(tmp_path))

    assert finished.code == 0
    assert json.loads(finished.output)["strategyOnFull"] == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["s"], 2, "Nothing to change: give options, or a definition with --file"),
        ([], 2, "Name the stream, or give a definition with --file"),
        (["--file", "x.json", "--pause", "cloud"], 2, "put --pause into the file"),
        (["s", "--pause", "clod"], 5, "the stream 's' has no export 'clod'; did you mean 'cloud'?"),
        (["s", "--resume", "x"], 5, "the stream 's' has no export 'x'; it has 'cloud'"),
        (["s", "--remove-export", "cloud2"], 5, "did you mean 'cloud'?"),
        (["s", "--pause", "cloud", "--resume", "cloud"], 2, "--resume: choose one"),
        (["s", "--s3", "cloud"], 2, "the identifier 'cloud' is used twice"),
        (["s", "--max-size", "1"], 2, "maxSize is 1: expected int >= 1024"),
        (["s", "--persistence", "memory"], 1, "definition.persistence is Memory: it cannot change"),
        (["s", "--segment-size", "1GB"], 1, "it must be less than maxSize"),
    ],
)
def test_invalid_update_changes_nothing(
    broker: LocalBroker, words: list[str], code: int, message: str
) -> None:
    succeed(broker, "create", "s", "--kinesis", "cloud=x")
    before = info_of(broker, "s")

    finished = streams(broker, "update", *words)

    assert finished.code == code
    assert message in finished.error
    assert finished.output == ""
    assert info_of(broker, "s") == before


# delete


def test_delete_removes_streams(broker: LocalBroker) -> None:
    for name in ("a", "b", "c", "d"):
        succeed(broker, "create", name)

    assert succeed(broker, "delete", "a", "--yes") == "deleted a\n"
    printed = succeed(broker, "delete", "b", "c", "b", "--yes", "--json")

    assert json.loads(printed) == {"deleted": ["b", "c"]}
    assert names_in(broker) == ["d"]


def test_delete_removes_nothing_if_a_stream_is_missing(broker: LocalBroker) -> None:
    succeed(broker, "create", "a")

    assert streams(broker, "delete", "a", "b", "--yes").code == 5
    assert names_in(broker) == ["a"]


def test_delete_without_a_terminal_requires_yes(broker: LocalBroker) -> None:
    succeed(broker, "create", "a")

    finished = streams(broker, "delete", "a")

    assert finished.code == 2
    assert finished.error_lines == [
        "penstock: there is no terminal for the confirmation: add --yes to delete"
    ]
    assert names_in(broker) == ["a"]


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, []), ("n", 1, ["a"])])
def test_delete_asks_for_confirmation_on_a_terminal(
    broker: LocalBroker, answer: str, code: int, left: list[str]
) -> None:
    succeed(broker, "create", "a")
    with broker.connect() as client:
        append(client, "a", b"x")
    terminal, side = pty.openpty()
    try:
        os.write(terminal, f"{answer}\n".encode())
        finished = subprocess.run(
            [str(PENSTOCK), "streams", "delete", "a", "--json", "--root", str(broker.root)],
            cwd="/",
            env=clean_environment(),
            stdin=side,
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    finally:
        os.close(terminal)
        os.close(side)

    assert finished.returncode == code
    assert "a (1 message, " in finished.stderr
    assert "Delete these streams and all their messages?" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert finished.stdout == ('{"deleted": ["a"]}\n' if answer == "y" else "")
    assert names_in(broker) == left


# completion


@pytest.mark.parametrize(
    "words",
    [["describe"], ["update", "--ttl", "1h"], ["delete"], ["delete", "--yes", "turbine-1"]],
)
def test_stream_names_are_completed(broker: LocalBroker, words: list[str]) -> None:
    for name in ("other", "turbine-1", "turbine-2"):
        succeed(broker, "create", name)
    line = ["penstock", "streams", *words[:1], "--root", str(broker.root), *words[1:], "turb"]

    offered = penstock_process(
        _PENSTOCK_COMPLETE="bash_complete",
        COMP_WORDS=shlex.join(line),
        COMP_CWORD=str(len(line) - 1),
    ).output

    assert offered.splitlines() == ["plain,turbine-1", "plain,turbine-2"]
