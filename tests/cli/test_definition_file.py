"""Definition files: each format and naming style, and the errors of invalid files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.cli.definition_file import read_definition
from penstock.cli.main import Failure
from penstock.model import KinesisConfig, MessageStreamDefinition, StrategyOnFull, to_wire

from .samples import FULL, SNAKE_CASE_TOML, write


def rejection(file: str, name: str | None = None) -> str:
    """The error message of a rejected file, without its name."""
    with pytest.raises(Failure) as rejected:
        read_definition(file, name)
    assert rejected.value.exit_code == 2
    assert "\n" not in rejected.value.message
    assert rejected.value.message.startswith(file)
    return rejected.value.message.removeprefix(file)


def test_file_may_use_names_of_the_python_sdk(tmp_path: Path) -> None:
    file = tmp_path / "full.toml"
    file.write_text(SNAKE_CASE_TOML)

    assert read_definition(str(file)) == FULL


@pytest.mark.parametrize("extension", ["toml", "yaml", "yml", "json", "JSON"])
def test_file_may_use_names_of_the_wire(tmp_path: Path, extension: str) -> None:
    path = Path(write(tmp_path, extension.lower(), to_wire(FULL)))
    path = path.rename(path.with_suffix(f".{extension}"))

    assert read_definition(str(path)) == FULL


def test_missing_fields_have_defaults(tmp_path: Path) -> None:
    file = write(tmp_path, "yaml", {"name": "s", "strategy_on_full": "RejectNewData"})

    assert read_definition(file) == MessageStreamDefinition(
        name="s", strategy_on_full=StrategyOnFull.RejectNewData
    )


def test_null_means_not_set(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "json",
        {"name": "s", "strategyOnFull": 1, "timeToLiveMillis": None, "maxSize": 2e6},
    )

    assert read_definition(file).time_to_live_millis is None
    assert read_definition(file).max_size == 2_000_000


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"max_sise": 1}, "max_sise: there is no such field; did you mean max_size?"),
        ({"maxSise": 1}, "maxSise: there is no such field; did you mean maxSize?"),
        ({"MAX_SIZE": 1}, "MAX_SIZE: there is no such field; did you mean max_size?"),
        ({"Max-Size": 1}, "Max-Size: there is no such field; did you mean maxSize?"),
        (
            {"export_definition": {"kinesis": [{"kinesis_stream": "x"}]}},
            "export_definition.kinesis[0].kinesis_stream: there is no such field; "
            "did you mean kinesis_stream_name?",
        ),
        (
            {"exportDefinition": {"http": [{"identifier": "a"}, {"batchSizes": 1}]}},
            "exportDefinition.http[1].batchSizes: there is no such field; did you mean batchSize?",
        ),
        (
            {"exportDefinition": {"iotSitewise": []}},
            "exportDefinition.iotSitewise: there is no such field; did you mean IotSitewise?",
        ),
        (
            {"export_definition": {"s3_task_executor": [{"status_config": {"level": 1}}]}},
            "export_definition.s3_task_executor[0].status_config.level: there is no such field; "
            "did you mean status_level?",
        ),
        (
            {"export_definition": {"s3": []}},
            "export_definition.s3: there is no such field; "
            "expected http, iot_analytics, kinesis, iot_sitewise, s3_task_executor",
        ),
        ({1: 2}, "1: there is no such field; expected name, maxSize,"),
    ],
)
def test_unknown_field_is_rejected_with_the_closest_name(
    tmp_path: Path, plain: Any, message: str
) -> None:
    assert rejection(write(tmp_path, "yaml", plain)).startswith(f": {message}")


def test_field_in_both_naming_styles_is_rejected(tmp_path: Path) -> None:
    plain = {"exportDefinition": {"kinesis": [{"batchSize": 1, "batch_size": 1}]}}

    assert rejection(write(tmp_path, "json", plain)) == (
        ": exportDefinition.kinesis[0].batch_size: given twice, as batch_size and as batchSize; "
        "leave one out"
    )


@pytest.mark.parametrize(
    ("extension", "text"),
    [
        ("json", '{"name": "a", "strategyOnFull": 1, "name": "b"}'),
        ("yaml", "name: a\nstrategy_on_full: 1\nname: b\n"),
        ("json", '{"name": "a", "exportDefinition": {"name": [], "name": []}}'),
        ("yaml", "export_definition: {name: [], name: []}"),
    ],
)
def test_duplicate_field_is_rejected(tmp_path: Path, extension: str, text: str) -> None:
    file = tmp_path / f"twice.{extension}"
    file.write_text(text)

    assert rejection(str(file)) == ": name is given twice"


def test_duplicate_field_is_rejected_in_toml(tmp_path: Path) -> None:
    file = tmp_path / "twice.toml"
    file.write_text('name = "a"\nname = "b"\n')

    assert "Cannot overwrite a value" in rejection(str(file))


def test_yaml_merge_key_fills_missing_fields(tmp_path: Path) -> None:
    file = tmp_path / "merged.yaml"
    file.write_text(
        "name: a\nstrategy_on_full: 1\nexport_definition:\n  kinesis:\n"
        "  - &first {identifier: one, kinesis_stream_name: s, priority: 3}\n"
        "  - {<<: *first, identifier: two}\n"
    )

    assert read_definition(str(file)).export_definition.kinesis == [
        KinesisConfig("one", "s", priority=3),
        KinesisConfig("two", "s", priority=3),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_size": 1}, "maxSize is 1: expected int >= 1024"),
        ({"max_size": "1GB"}, "maxSize is '1GB': expected int, got str"),
        ({"flush_on_write": "yes"}, "flushOnWrite is 'yes': expected bool, got str"),
        (
            {"strategy_on_full": "Overwrite"},
            "strategy_on_full is 'Overwrite': "
            "expected one of RejectNewData (0), OverwriteOldestData (1)",
        ),
        (
            {"strategyOnFull": 7},
            "strategyOnFull is 7: expected one of 0 (RejectNewData), 1 (OverwriteOldestData)",
        ),
        ({"strategy_on_full": None}, "object missing required field strategyOnFull"),
        ({"name": None}, "object missing required field name"),
        ({"name": "a/b"}, "name is 'a/b': expected letters, digits"),
        (
            {"export_definition": {"kinesis": {"identifier": "k"}}},
            "exportDefinition.kinesis is a map: expected array",
        ),
        (
            {"export_definition": {"kinesis": [{"identifier": "k"}]}},
            "exportDefinition.kinesis[0]: object missing required field kinesisStreamName",
        ),
        (
            {"export_definition": {"s3_task_executor": [{"status_config": {"status_level": "X"}}]}},
            "export_definition.s3_task_executor[0].status_config.status_level is 'X': "
            "expected one of ERROR (0), WARN (1),",
        ),
        (
            {
                "export_definition": {
                    "iot_sitewise": [{"identifier": "a"}],
                    "s3_task_executor": [{"identifier": "a"}],
                }
            },
            "definition.exportDefinition: the identifier 'a' is used twice",
        ),
    ],
)
def test_invalid_value_is_rejected_with_allowed_values(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    plain = {"name": "s", "strategy_on_full": 1}
    if "strategyOnFull" in change:
        del plain["strategy_on_full"]

    assert rejection(write(tmp_path, "yaml", plain | change)).startswith(f": {message}")


@pytest.mark.parametrize(
    ("extension", "text", "message"),
    [
        ("toml", "name = ", ": Invalid value (at end of document)"),
        ("json", "{", ": Expecting property name"),
        ("yaml", "name: [", ": expected the node content, but found '<stream end>' (line 1, col"),
        ("yaml", "name: \0", ": unacceptable character #x0000"),
        ("yaml", "when: !!python/object:x.Y {}", ": could not determine a constructor"),
        ("yaml", "", ": expected the fields of a definition"),
        ("json", "[]", ": expected the fields of a definition"),
        ("json", "[" * 100_000, " cannot be read: it is nested too deeply"),
        ("yaml", "name: &name [*name]", " cannot be read: it is nested too deeply"),
        ("yaml", "name: 2020-01-01\nstrategy_on_full: 1", ": name is datetime.date(2020, 1, 1): "),
        (
            "ini",
            "name = 1",
            ": expected a file whose name ends in one of .toml, .yaml, .yml, .json",
        ),
    ],
)
def test_malformed_file_is_rejected(
    tmp_path: Path, extension: str, text: str, message: str
) -> None:
    file = tmp_path / f"broken.{extension}"
    file.write_text(text)

    assert rejection(str(file)).startswith(message)


def test_binary_file_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "binary.json"
    file.write_bytes(b"\xff\xfe")

    assert "can't decode" in rejection(str(file))


def test_missing_file_is_rejected(tmp_path: Path) -> None:
    assert rejection(str(tmp_path / "a.toml")) == " cannot be read: No such file or directory"


def test_description_is_not_accepted_as_definition(tmp_path: Path) -> None:
    file = write(tmp_path, "json", {"definition": {}, "storageStatus": {}, "exportStatuses": []})

    assert "use only its member definition" in rejection(file)


def test_name_argument_names_a_stream_whose_file_has_no_name(tmp_path: Path) -> None:
    file = write(tmp_path, "json", {"strategyOnFull": 1})

    assert read_definition(file, "given").name == "given"


def test_name_argument_must_match_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "json", {"name": "a", "strategyOnFull": 1})

    assert read_definition(file, "a").name == "a"
    assert rejection(file, "b") == (
        " defines the stream 'a', but the command names 'b': use the same name, or leave one out"
    )
