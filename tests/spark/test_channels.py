from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import ResourceNotFoundException, SettingError
from penstock.spark.channels import (
    ChannelReader,
    ChannelTask,
    PartFile,
    find_channels,
    list_parts,
    plan_tasks,
)
from penstock.spark.options import ChannelReadOptions
from penstock.spark.source import CHANNEL_SCHEMA, SCHEMA, PenstockDataSource
from tests.spark.channel_files import DAY, NOON, fill

MEBIBYTE = 1024 * 1024


def options(channels: str | None = None, root: str | None = None) -> ChannelReadOptions:
    return ChannelReadOptions(channel="farm", channels=channels, root=root)


def test_directory_comes_from_options_environment_or_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert find_channels(options(channels="/c", root="/r"), {}) == Path("/c")
    environment = {"PENSTOCK_CHANNELS": "/e", "PENSTOCK_ROOT": "/p"}
    assert find_channels(options(root="/r"), environment) == Path("/r/channels")
    assert find_channels(options(), environment) == Path("/e")
    assert find_channels(options(), {"PENSTOCK_ROOT": "/p"}) == Path("/p/channels")
    assert find_channels(options(), {}) == Path("/home/me/.penstock/channels")
    Path("penstock.toml").write_text('channels = "/t"\nroot = "/x"\n')
    assert find_channels(options(), {}) == Path("/t")


def test_unknown_channel_is_an_error_that_lists_existing_channels(tmp_path: Path) -> None:
    with pytest.raises(ResourceNotFoundException, match=r"no channel farm .* set option channels"):
        list_parts(tmp_path / "channels", "farm")
    for name in ("wind", "rain"):
        fill(tmp_path, name, 0, 1)
    with pytest.raises(
        ResourceNotFoundException, match=r"no channel farm .* expected one of rain, wind"
    ):
        list_parts(tmp_path / "channels", "farm")


def test_files_are_listed_by_date_without_unfinished_files(tmp_path: Path) -> None:
    fill(tmp_path, "farm", 0, 9)
    day = next((tmp_path / "channels/farm").glob("date=*"))
    (day / ".turbine-0123abcd-1").write_bytes(b"half")
    (day / "notes.txt").write_bytes(b"another file")
    parts = list_parts(tmp_path / "channels", "farm")
    assert len(parts) == 3
    assert [part.path for part in parts] == sorted(part.path for part in parts)
    assert all(part.size == Path(part.path).stat().st_size for part in parts)


@pytest.mark.parametrize(
    ("sizes", "min_partitions", "tasks"),
    [
        ([], 1, 0),
        ([1000] * 100, 1, 1),
        ([1000] * 100, 10, 10),
        ([10 * MEBIBYTE] * 4, 1, 2),
        ([10 * MEBIBYTE] * 4, 4, 4),
        ([10 * MEBIBYTE] * 4, 99, 4),
    ],
)
def test_small_files_share_a_task(sizes: list[int], min_partitions: int, tasks: int) -> None:
    parts = [PartFile(str(place), size) for place, size in enumerate(sizes)]
    planned = plan_tasks(parts, min_partitions, cores=2)
    assert len(planned) == tasks
    assert [path for task in planned for path in task.paths] == [part.path for part in parts]


def test_missing_file_has_no_rows(tmp_path: Path) -> None:
    reader = ChannelReader(options())
    assert list(reader.read(ChannelTask([str(tmp_path / "gone.parquet")]))) == []


@pytest.mark.parametrize("name", ["../etc", "a b", "x" * 129])
def test_invalid_channel_name_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match="option channel is"):
        ChannelReader(ChannelReadOptions(channel=name))


def test_options_stream_and_channel_are_exclusive() -> None:
    source = PenstockDataSource({"channel": "farm", "stream": "s"})
    for call in (source.schema, lambda: source.reader(SCHEMA)):
        with pytest.raises(SettingError, match="options stream and channel are both set"):
            call()


def test_channel_supports_no_streaming_queries_and_no_writes() -> None:
    source = PenstockDataSource({"channel": "farm"})
    with pytest.raises(SettingError, match="read the stream that fills the channel"):
        source.streamReader(CHANNEL_SCHEMA)
    with pytest.raises(SettingError, match="option channel is for a channel, not for a write"):
        source.writer(SCHEMA, overwrite=False)


def test_option_of_streams_is_refused_for_a_channel() -> None:
    source = PenstockDataSource({"channel": "farm", "startingPosition": "7"})
    with pytest.raises(SettingError, match="not for a channel"):
        source.reader(CHANNEL_SCHEMA)


def test_channel_has_its_own_schema_and_reader() -> None:
    assert PenstockDataSource({"Channel": "farm"}).schema() == CHANNEL_SCHEMA
    reader = PenstockDataSource({"channel": "farm"}).reader(CHANNEL_SCHEMA)
    assert type(pickle.loads(pickle.dumps(reader))) is ChannelReader


@pytest.fixture
def read_channel(spark: SparkSession, tmp_path: Path) -> Callable[[str], DataFrame]:
    def read(name: str) -> DataFrame:
        reader = spark.read.format("penstock").option("channel", name)
        return reader.option("root", str(tmp_path)).option("minPartitions", 3).load()

    return read


def test_channel_is_read_as_a_dataframe(
    read_channel: Callable[[str], DataFrame], tmp_path: Path
) -> None:
    fill(tmp_path, "farm", 0, 30)
    fill(tmp_path, "farm", 0, 3, stream="weather")
    rows = read_channel("farm").orderBy("stream", "sequence_number").collect()
    assert [(row.stream, row.sequence_number) for row in rows] == [
        *(("turbine", number) for number in range(30)),
        *(("weather", number) for number in range(3)),
    ]
    assert rows[29].message_id == "turbine-29"
    assert bytes(rows[29].payload) == b"29"
    assert int(rows[29].ingest_time.timestamp() * 1000) == NOON + 2 * DAY
    assert read_channel("farm").rdd.getNumPartitions() == 3
    assert read_channel("farm").where("sequence_number >= 28").count() == 2
