from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.model import MessageStreamDefinition, StrategyOnFull
from penstock.store.log import FileLog
from penstock.store.segment import DamagedError
from penstock.store.store import Store
from soak.damage import (
    SEGMENT_DAMAGE,
    Damage,
    DamageKind,
    find_stream_directory,
    list_segments,
    plan_catalog_damage,
    plan_damage,
)
from soak.messages import make_payload

COUNT = 200


def write_store(root: Path) -> None:
    store = Store(root)
    definition = MessageStreamDefinition(
        name="victim",
        strategy_on_full=StrategyOnFull.RejectNewData,
        stream_segment_size=4096,
    )
    log = store.create(definition).log
    for counter in range(COUNT):
        log.append([make_payload("s", counter)], 0)
    store.close()


def damage_sealed_segment(root: Path, kind: DamageKind, seed: int) -> Damage:
    segments = list_segments(find_stream_directory(root, "victim"))
    assert len(segments) > 3
    damage = plan_damage(segments[1], kind, Random(seed))
    damage.apply()
    return damage


def readable(root: Path) -> set[int]:
    store = Store(root)
    log = store.streams["victim"].log
    assert isinstance(log, FileLog)
    found = set()
    for number in range(log.oldest, log.end):
        try:
            (payload,) = log.read(number, number + 1, 1).payloads
        except DamagedError:
            continue
        assert payload == make_payload("s", number)
        found.add(number)
    store.close()
    return found


@pytest.mark.parametrize("kind", SEGMENT_DAMAGE)
@pytest.mark.parametrize("seed", range(4))
def test_hits_are_the_unreadable_messages(tmp_path: Path, kind: DamageKind, seed: int) -> None:
    write_store(tmp_path)
    damage = damage_sealed_segment(tmp_path, kind, seed)
    assert damage.hits
    found = readable(tmp_path)
    assert found >= set(range(COUNT)) - damage.hits
    # An end position beyond the file does not damage the last message of a segment.
    if kind is not DamageKind.FLIP_INDEX:
        assert not found & damage.hits


def test_damage_of_the_catalog_hits_no_message(tmp_path: Path) -> None:
    write_store(tmp_path)
    for seed in range(10):
        before = (tmp_path / "catalog.sqlite").read_bytes()
        damage = plan_catalog_damage(tmp_path, Random(seed))
        damage.apply()
        assert damage.hits == frozenset()
        after = (tmp_path / "catalog.sqlite").read_bytes()
        # Zeros may replace zeros.
        assert after != before or damage.kind is DamageKind.ZERO_CATALOG
        (tmp_path / "catalog.sqlite").write_bytes(before)
