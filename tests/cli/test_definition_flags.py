"""Definitions that are changed by options."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli.definition_flags import FOREVER, ExportChanges, change_definition
from penstock.cli.main import Failure
from penstock.model import (
    ExportDefinition,
    HTTPConfig,
    IoTSiteWiseConfig,
    KinesisConfig,
    MessageStreamDefinition,
    StrategyOnFull,
    to_wire,
)

from .samples import FULL


def test_flags_change_only_their_fields() -> None:
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


def test_identifier_of_a_removed_export_can_be_reused() -> None:
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
            "the export 'k1' is given to more than one of --remove-export, --pause and --resume: "
            "choose one",
            2,
        ),
    ],
)
def test_invalid_change_is_rejected(
    flags: dict[str, Any], changes: ExportChanges, message: str, code: int
) -> None:
    with pytest.raises(Failure) as rejected:
        change_definition(FULL, flags, changes)

    assert rejected.value.message == message
    assert rejected.value.exit_code == code


def test_unknown_export_of_a_stream_without_exports_is_rejected() -> None:
    plain = MessageStreamDefinition(name="s", strategy_on_full=StrategyOnFull.RejectNewData)

    with pytest.raises(Failure, match="the stream 's' has no export 'k'; it has no exports"):
        change_definition(plain, {}, ExportChanges(paused=("k",)))
