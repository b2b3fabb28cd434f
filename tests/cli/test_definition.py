"""Definitions as people write them: sizes, durations, files, flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.definition import (
    FOREVER,
    ExportChanges,
    change_definition,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
    read_definition,
)
from penstock.cli.main import Failure
from penstock.model import (
    ExportDefinition,
    ExportFormat,
    HTTPConfig,
    IoTAnalyticsConfig,
    IoTSiteWiseConfig,
    KinesisConfig,
    MessageStreamDefinition,
    Persistence,
    S3ExportTaskExecutorConfig,
    StatusConfig,
    StatusLevel,
    StrategyOnFull,
    to_wire,
)
from penstock.model.limits import INT64_MAX, MILLIS_MAX

# With every field that there is.
FULL = MessageStreamDefinition(
    name="full",
    max_size=1_000_000_000,
    stream_segment_size=1 << 20,
    time_to_live_millis=3_600_000,
    strategy_on_full=StrategyOnFull.OverwriteOldestData,
    persistence=Persistence.Memory,
    flush_on_write=True,
    export_definition=ExportDefinition(
        http=[HTTPConfig("h", "http://x/?a=b", 1, 60_000, 1, 2, True, ExportFormat.JSON_BATCHED)],
        iot_analytics=[IoTAnalyticsConfig("i", "channel", "prefix", 2, 60_001, 2, 3, False)],
        kinesis=[
            KinesisConfig("k1", "stream", 3, 60_002, 3, 4, False),
            KinesisConfig("k2", "stream"),
        ],
        iot_sitewise=[IoTSiteWiseConfig("w", 4, 60_003, 4, 5, True)],
        s3_task_executor=[
            S3ExportTaskExecutorConfig(
                "s", 5_242_880, 5, False, StatusConfig(StatusLevel.DEBUG, "statuses")
            )
        ],
    ),
)

SNAKE_CASE_TOML = """
name = "full"
max_size = 1_000_000_000
stream_segment_size = 1048576
time_to_live_millis = 3600000
strategy_on_full = "OverwriteOldestData"
persistence = "Memory"
flush_on_write = true

[[export_definition.http]]
identifier = "h"
uri = "http://x/?a=b"
batch_size = 1
batch_interval_millis = 60000
priority = 1
start_sequence_number = 2
disabled = true
export_format = "JSON_BATCHED"

[[export_definition.iot_analytics]]
identifier = "i"
iot_channel = "channel"
iot_msg_id_prefix = "prefix"
batch_size = 2
batch_interval_millis = 60001
priority = 2
start_sequence_number = 3
disabled = false

[[export_definition.kinesis]]
identifier = "k1"
kinesis_stream_name = "stream"
batch_size = 3
batch_interval_millis = 60002
priority = 3
start_sequence_number = 4
disabled = false

[[export_definition.kinesis]]
identifier = "k2"
kinesis_stream_name = "stream"

[[export_definition.iot_sitewise]]
identifier = "w"
batch_size = 4
batch_interval_millis = 60003
priority = 4
start_sequence_number = 5
disabled = true

[[export_definition.s3_task_executor]]
identifier = "s"
size_threshold_for_multipart_upload_bytes = 5242880
priority = 5
disabled = false

[export_definition.s3_task_executor.status_config]
status_level = "DEBUG"
status_stream_name = "statuses"
"""


def in_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {in_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_toml, value)) + "]"
    return json.dumps(value)


def write(directory: Path, extension: str, plain: Any) -> str:
    """A file that holds this, in the format of the extension."""
    path = directory / f"definition.{extension}"
    if extension == "toml":
        text = "\n".join(f"{name} = {in_toml(item)}" for name, item in plain.items())
    elif extension == "json":
        text = json.dumps(plain)
    else:
        text = yaml.safe_dump(plain)
    path.write_text(text)
    return str(path)


def refusal(file: str, name: str | None = None) -> str:
    """What is said of a file that is refused, without its name."""
    with pytest.raises(Failure) as refused:
        read_definition(file, name)
    assert refused.value.exit_code == 2
    assert "\n" not in refused.value.message
    assert refused.value.message.startswith(file)
    return refused.value.message.removeprefix(file)


# Sizes and durations


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("10B", 10),
        ("64KiB", 65_536),
        ("256MiB", 268_435_456),
        ("256 mib", 268_435_456),
        ("1GB", 1_000_000_000),
        ("1.5kb", 1500),
        ("0.5KiB", 512),
        (" 2TiB ", 2 << 40),
    ],
)
def test_a_size_is_a_number_and_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "12q", "1M", "-1", "1,5KB", "1 2", "1KB2KB", "٣", "."])
def test_what_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no size: expected .* 256MiB"):
        parse_size(text)


def test_a_size_is_a_whole_number_of_bytes() -> None:
    with pytest.raises(ValueError, match=r"'1\.3KiB' is not a whole number of bytes"):
        parse_size("1.3KiB")


@given(st.integers(0, INT64_MAX))
def test_a_size_is_shown_so_that_it_can_be_given_again(size: int) -> None:
    assert parse_size(format_size(size)) == size


def test_a_size_is_shown_in_the_largest_unit_that_fits() -> None:
    assert format_size(0) == "0 B"
    assert format_size(1000) == "1 KB"
    assert format_size(256 << 20) == "256 MiB"
    assert format_size(2_000_000_000) == "2 GB"
    assert format_size((1 << 30) + 1) == "1073741825 B"


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("90s", 90_000),
        ("500ms", 500),
        ("30min", 1_800_000),
        ("30m", 1_800_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("1w", 604_800_000),
        ("1h30m", 5_400_000),
        ("1 h 30 min", 5_400_000),
        ("1.5H", 5_400_000),
    ],
)
def test_a_duration_is_numbers_and_units(text: str, millis: int) -> None:
    assert parse_duration(text) == millis


@pytest.mark.parametrize("text", ["", "h", "90", "1h30", "1x", "-1h", "1h,2m", "1" * 60 + "!"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no duration: expected .* 7d"):
        parse_duration(text)


def test_a_duration_is_a_whole_number_of_milliseconds() -> None:
    with pytest.raises(ValueError, match="not a whole number of milliseconds"):
        parse_duration("0.5ms")


@given(st.integers(0, MILLIS_MAX))
def test_a_duration_is_shown_so_that_it_can_be_given_again(millis: int) -> None:
    assert parse_duration(format_duration(millis)) == millis


# Files


def test_a_file_may_use_the_names_of_the_python_sdk(tmp_path: Path) -> None:
    file = tmp_path / "full.toml"
    file.write_text(SNAKE_CASE_TOML)

    assert read_definition(str(file)) == FULL


@pytest.mark.parametrize("extension", ["toml", "yaml", "yml", "json", "JSON"])
def test_a_file_may_use_the_names_on_the_wire(tmp_path: Path, extension: str) -> None:
    path = Path(write(tmp_path, extension.lower(), to_wire(FULL)))
    path = path.rename(path.with_suffix(f".{extension}"))

    assert read_definition(str(path)) == FULL


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    file = write(tmp_path, "yaml", {"name": "s", "strategy_on_full": "RejectNewData"})

    assert read_definition(file) == MessageStreamDefinition(
        name="s", strategy_on_full=StrategyOnFull.RejectNewData
    )


def test_nothing_is_what_null_stands_for(tmp_path: Path) -> None:
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
def test_an_unknown_field_is_refused_with_the_nearest_name(
    tmp_path: Path, plain: Any, message: str
) -> None:
    assert refusal(write(tmp_path, "yaml", plain)).startswith(f": {message}")


def test_a_field_in_both_spellings_is_refused(tmp_path: Path) -> None:
    plain = {"exportDefinition": {"kinesis": [{"batchSize": 1, "batch_size": 1}]}}

    assert refusal(write(tmp_path, "json", plain)) == (
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
def test_a_field_that_is_given_twice_is_refused(tmp_path: Path, extension: str, text: str) -> None:
    file = tmp_path / f"twice.{extension}"
    file.write_text(text)

    assert refusal(str(file)) == ": name is given twice"


def test_a_field_that_is_given_twice_is_refused_in_toml(tmp_path: Path) -> None:
    file = tmp_path / "twice.toml"
    file.write_text('name = "a"\nname = "b"\n')

    assert "Cannot overwrite a value" in refusal(str(file))


def test_a_merge_key_of_yaml_gives_what_is_not_given(tmp_path: Path) -> None:
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
        ({"name": "a/b"}, "name is 'a/b': expected str matching"),
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
def test_a_wrong_value_is_refused_with_what_is_allowed(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    plain = {"name": "s", "strategy_on_full": 1}
    if "strategyOnFull" in change:
        del plain["strategy_on_full"]

    assert refusal(write(tmp_path, "yaml", plain | change)).startswith(f": {message}")


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
def test_a_file_that_is_none_is_refused(
    tmp_path: Path, extension: str, text: str, message: str
) -> None:
    file = tmp_path / f"broken.{extension}"
    file.write_text(text)

    assert refusal(str(file)).startswith(message)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "binary.json"
    file.write_bytes(b"\xff\xfe")

    assert "can't decode" in refusal(str(file))


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    assert refusal(str(tmp_path / "a.toml")) == " cannot be read: No such file or directory"


def test_a_description_is_told_from_a_definition(tmp_path: Path) -> None:
    file = write(tmp_path, "json", {"definition": {}, "storageStatus": {}, "exportStatuses": []})

    assert "the part of it that is called definition" in refusal(file)


def test_a_name_beside_a_file_without_one_names_the_stream(tmp_path: Path) -> None:
    file = write(tmp_path, "json", {"strategyOnFull": 1})

    assert read_definition(file, "given").name == "given"


def test_a_name_beside_a_file_must_be_the_same(tmp_path: Path) -> None:
    file = write(tmp_path, "json", {"name": "a", "strategyOnFull": 1})

    assert read_definition(file, "a").name == "a"
    assert refusal(file, "b") == (" defines 'a', and the command names 'b': leave one of them out")


# Flags


def test_flags_change_what_they_name_and_nothing_else() -> None:
    changed = change_definition(FULL, {"max_size": 2048, "time_to_live_millis": FOREVER})

    assert to_wire(changed) == {
        **{name: value for name, value in to_wire(FULL).items() if name != "timeToLiveMillis"},
        "maxSize": 2048,
    }
    assert FULL.max_size == 1_000_000_000


def test_exports_are_paused_resumed_removed_and_added() -> None:
    changed = change_definition(
        FULL,
        {"kinesis": (KinesisConfig("k3", "other"),)},
        ExportChanges(removed=("h", "k2"), paused=("k1",), resumed=("w",)),
    )

    assert changed.export_definition == ExportDefinition(
        iot_analytics=FULL.export_definition.iot_analytics,
        kinesis=[
            KinesisConfig("k1", "stream", 3, 60_002, 3, 4, True),
            KinesisConfig("k3", "other"),
        ],
        iot_sitewise=[IoTSiteWiseConfig("w", 4, 60_003, 4, 5, False)],
        s3_task_executor=FULL.export_definition.s3_task_executor,
    )


def test_an_export_that_is_removed_makes_room_for_one_of_its_name() -> None:
    changed = change_definition(
        FULL, {"http": (HTTPConfig("k1", "http://y"),)}, ExportChanges(removed=("k1",))
    )

    assert changed.export_definition.kinesis == [KinesisConfig("k2", "stream")]
    assert changed.export_definition.http is not None
    assert changed.export_definition.http[-1] == HTTPConfig("k1", "http://y")


@pytest.mark.parametrize(
    ("flags", "changes", "message", "code"),
    [
        ({"max_size": 1}, ExportChanges(), "maxSize is 1: expected int >= 1024", 2),
        (
            {"http": (HTTPConfig("k1", "u"),)},
            ExportChanges(),
            "definition.exportDefinition: the identifier 'k1' is used twice; it must be unique "
            "among all exports of the stream",
            2,
        ),
        (
            {},
            ExportChanges(paused=("k11",)),
            "the stream 'full' has no export 'k11'; did you mean 'k1'?",
            5,
        ),
        (
            {},
            ExportChanges(removed=("zzz",)),
            "the stream 'full' has no export 'zzz'; it has 'h', 'i', 'k1', 'k2', 'w', 's'",
            5,
        ),
        (
            {},
            ExportChanges(paused=("k1",), resumed=("k1",)),
            "the export 'k1' can be removed, paused or resumed, but only one of them at a time",
            2,
        ),
    ],
)
def test_what_cannot_be_is_refused(
    flags: dict[str, Any], changes: ExportChanges, message: str, code: int
) -> None:
    with pytest.raises(Failure) as refused:
        change_definition(FULL, flags, changes)

    assert refused.value.message == message
    assert refused.value.exit_code == code


def test_a_stream_without_exports_says_so() -> None:
    plain = MessageStreamDefinition(name="s", strategy_on_full=StrategyOnFull.RejectNewData)

    with pytest.raises(Failure, match="the stream 's' has no export 'k'; it has none"):
        change_definition(plain, {}, ExportChanges(paused=("k",)))
