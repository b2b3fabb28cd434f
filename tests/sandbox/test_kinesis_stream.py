"""A Kinesis stream: which shard a record goes to, and how it is found again."""

from __future__ import annotations

import pytest

from penstock.sandbox.kinesis_stream import (
    KinesisRecord,
    KinesisStream,
    ShardIterator,
    number_of,
    sequence_number,
)


def stream(shards: int) -> KinesisStream:
    return KinesisStream(
        "s", shards, mode="PROVISIONED", max_record_kib=1024, created=0.0, limit=1 << 20
    )


def test_shards_share_all_hashes_without_gaps() -> None:
    ranges = [shard["HashKeyRange"] for shard in stream(3).describe_shards()]

    starts = [int(found["StartingHashKey"]) for found in ranges]
    ends = [int(found["EndingHashKey"]) for found in ranges]
    assert starts[0] == 0
    assert ends[-1] == 2**128 - 1
    assert starts[1:] == [end + 1 for end in ends[:-1]]


def test_a_record_goes_to_the_shard_that_has_its_hash() -> None:
    several = stream(3)
    for shard in several.describe_shards():
        for key in shard["HashKeyRange"].values():
            assert several.find_shard("ignored", key) == shard["ShardId"]


def test_a_partition_key_leads_to_the_same_shard_each_time_and_keys_to_all_of_them() -> None:
    several = stream(3)
    found = {str(key): several.find_shard(str(key), None) for key in range(100)}

    assert set(found.values()) == set(several.shards)
    assert found == {key: several.find_shard(key, None) for key in found}


def test_a_time_leads_to_the_first_record_from_then_on() -> None:
    one = stream(1)
    for time in (10.0, 20.0, 30.0):
        one.buffer.add(KinesisRecord(b"", "k", one.shards[0], time), 0)

    assert [one.number_at_time(time) for time in (0, 10, 11, 30, 31)] == [0, 0, 1, 2, 3]


def test_sequence_numbers_are_long_and_in_order() -> None:
    texts = [sequence_number(number) for number in (0, 9, 10, 10**9)]

    assert texts == sorted(texts)
    assert {len(text) for text in texts} == {56}
    assert number_of(texts[-1]) == 10**9


@pytest.mark.parametrize("text", ["", "7", "4966x"])
def test_what_is_no_sequence_number_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        number_of(text)


def test_an_iterator_is_the_same_after_its_way_through_a_client() -> None:
    iterator = ShardIterator("s", "shardId-000000000000", 7)

    assert ShardIterator.decode(iterator.encode()) == iterator


@pytest.mark.parametrize("text", ["", "%", "YQ==", "YS9iL2M="])
def test_what_is_no_iterator_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        ShardIterator.decode(text)
