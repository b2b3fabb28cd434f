from __future__ import annotations

import pytest

from penstock.model.channel_file import (
    ChannelFile,
    abbreviate,
    date_directory,
    day_of,
    is_channel_name,
    message_id,
)


@pytest.mark.parametrize("name", ["a", "wind_farm_7", "A" * 128])
def test_names_that_aws_allows_are_accepted(name: str) -> None:
    assert is_channel_name(name)


@pytest.mark.parametrize("name", ["", "a-b", "..", "a/b", "a b", "a\n", "A" * 129, "ä", "."])
def test_other_names_are_rejected(name: str) -> None:
    assert not is_channel_name(name)


def test_long_message_id_keeps_its_number() -> None:
    assert message_id("p/", "stream", 7) == "p/stream-7"
    long = message_id("p" * 32, "s" * 255, 2**63 - 1)
    assert len(long) == 128
    assert long.endswith(f"s-{2**63 - 1}")


def test_day_begins_at_midnight_utc() -> None:
    assert [date_directory(day_of(millis)) for millis in (0, 86_399_999, 86_400_000)] == [
        "date=1970-01-01",
        "date=1970-01-01",
        "date=1970-01-02",
    ]


def test_file_name_is_parsed() -> None:
    file = ChannelFile("0f3c-stream", abbreviate("my export"), 12)
    assert file.name == f"0f3c-stream-{abbreviate('my export')}-00000000000000000012.parquet"
    assert ChannelFile.parse(file.name) == file


@pytest.mark.parametrize(
    "name",
    ["part-0000.parquet", ".s-0123abcd-00000000000000000012.parquet", "notes.txt", "_SUCCESS"],
)
def test_other_file_names_are_ignored(name: str) -> None:
    assert ChannelFile.parse(name) is None
