"""Shards, sequence numbers and iterators of a Kinesis stream."""

from __future__ import annotations

import pytest

from penstock.sandbox.kinesis_stream import (
    KinesisRecord,
    KinesisStream,
    ShardIterator,
    format_sequence_number,
    parse_sequence_number,
)


def stream(shards: int) -> KinesisStream:
    return KinesisStream(
        "s", shards, mode="PROVISIONED", max_record_kib=1024, created=0.0, limit=1 << 20
    )


def test_shards_cover_all_hashes_without_gaps() -> None:
    ranges = [shard["HashKeyRange"] for shard in stream(3).describe_shards()]

    starts = [int(found["StartingHashKey"]) for found in ranges]
    ends = [int(found["EndingHashKey"]) for found in ranges]
    assert starts[0] == 0
    assert ends[-1] == 2**128 - 1
    assert starts[1:] == [end + 1 for end in ends[:-1]]


def test_record_goes_to_the_shard_of_its_hash() -> None:
    several = stream(3)
    for shard in several.describe_shards():
        for key in shard["HashKeyRange"].values():
            assert several.find_shard("ignored", key) == shard["ShardId"]


def test_partition_key_selects_a_fixed_shard_and_keys_use_all_shards() -> None:
    several = stream(3)
    found = {str(key): several.find_shard(str(key), None) for key in range(100)}

    assert set(found.values()) == set(several.shards)
    assert found == {key: several.find_shard(key, None) for key in found}


def test_time_selects_the_first_record_at_or_after_it() -> None:
    one = stream(1)
    for time in (10.0, 20.0, 30.0):
        one.buffer.add(KinesisRecord(b"", "k", one.shards[0], time), 0)

    assert [one.find_number_at_time(time) for time in (0, 10, 11, 30, 31)] == [0, 0, 1, 2, 3]


def test_sequence_numbers_are_long_and_in_order() -> None:
    texts = [format_sequence_number(number) for number in (0, 9, 10, 10**9)]

    assert texts == sorted(texts)
    assert {len(text) for text in texts} == {56}
    assert parse_sequence_number(texts[-1]) == 10**9


@pytest.mark.parametrize("text", ["", "7", "4966x"])
def test_malformed_sequence_number_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_sequence_number(text)


def test_iterator_is_decoded_from_its_encoding() -> None:
    iterator = ShardIterator("s", "shardId-000000000000", 7)

    assert ShardIterator.decode(iterator.encode()) == iterator


@pytest.mark.parametrize("text", ["", "%", "YQ==", "YS9iL2M="])
def test_malformed_iterator_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        ShardIterator.decode(text)
