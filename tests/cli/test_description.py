"""Streams as text: the row, the description, and the differences of an update."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.cli.description import (
    LIST_HEADINGS,
    contents,
    description_lines,
    difference_lines,
    list_row,
)
from penstock.model import (
    ExportDefinition,
    ExportStatus,
    HTTPConfig,
    IoTSiteWiseConfig,
    KinesisConfig,
    MessageStreamDefinition,
    MessageStreamInfo,
    Persistence,
    S3ExportTaskExecutorConfig,
    StorageStatus,
    StrategyOnFull,
)

from .samples import FULL

EMPTY = StorageStatus(0, -1, 0)


def defined(**fields: Any) -> MessageStreamDefinition:
    strategy = StrategyOnFull.OverwriteOldestData
    return MessageStreamDefinition(**{"name": "s", "strategy_on_full": strategy, **fields})


def with_exports(**exports: Any) -> MessageStreamDefinition:
    return defined(export_definition=ExportDefinition(**exports))


def described(
    definition: MessageStreamDefinition,
    storage: StorageStatus = EMPTY,
    *statuses: ExportStatus,
) -> MessageStreamInfo:
    return MessageStreamInfo(definition, storage, list(statuses))


def squeezed(info: MessageStreamInfo) -> list[str]:
    """The description without the alignment of its columns."""
    return [" ".join(line.split()) for line in description_lines(info)]


# The row


def test_row_has_a_cell_for_each_heading() -> None:
    row = list_row(described(FULL, StorageStatus(5, 14, 17 << 20)))

    assert dict(zip(LIST_HEADINGS, row, strict=True)) == {
        "name": "full",
        "messages": 10,
        "oldest..newest": "5..14",
        "size": "17 MiB",
        "max size": "954 MiB",
        "persistence": "memory",
        "on full": "overwrite",
        "exports": 6,
    }


@pytest.mark.parametrize("storage", [EMPTY, StorageStatus(7, 6, 0)])
def test_empty_stream_has_no_range(storage: StorageStatus) -> None:
    row = list_row(described(defined(strategy_on_full=StrategyOnFull.RejectNewData), storage))

    assert row == ("s", 0, "-", "0 B", "256 MiB", "file", "reject", 0)


@pytest.mark.parametrize(
    ("storage", "shown"),
    [
        (EMPTY, "0 messages, 0 B"),
        (StorageStatus(3, 3, 1000), "1 message, 1000 B"),
        (StorageStatus(3, 4, 2048), "2 messages, 2 KiB"),
    ],
)
def test_contents_count_messages_and_bytes(storage: StorageStatus, shown: str) -> None:
    assert contents(described(defined(), storage)) == shown


# The description


def test_description_is_aligned_per_section() -> None:
    definition = defined(
        max_size=1_000_000,
        time_to_live_millis=5_400_000,
        export_definition=ExportDefinition(
            kinesis=[KinesisConfig("k", "cloud", disabled=True)],
            s3_task_executor=[S3ExportTaskExecutorConfig("f")],
        ),
    )
    status = ExportStatus("k", 3, 1_700_000_000_000, "slow", 2048, 4)

    lines = list(description_lines(described(definition, StorageStatus(0, 9, 10_240), status)))

    assert lines == [
        "name                 s",
        "messages             10 (0..9)",
        "size                 10 KiB (1.0% of max size)",
        "max size             1 MB",
        "stream segment size  16 MiB",
        "time to live         1 h 30 min",
        "strategy on full     OverwriteOldestData",
        "persistence          File",
        "flush on write       no",
        "",
        "export k",
        "  kind                 kinesis",
        "  state                paused",
        "  kinesis stream name  cloud",
        "  exported             4 messages, 2 KiB (until 3)",
        "  behind               6 messages",
        "  last export          2023-11-14 22:13:20+00:00",
        "  last error           slow",
        "",
        "export f",
        "  kind         s3_task_executor",
        "  state        active",
        "  exported     0 messages, 0 B",
        "  behind       10 messages",
        "  last export  never",
        "  last error   none",
    ]


def test_description_has_all_fields_of_exports() -> None:
    lines = squeezed(described(FULL))

    for line in (
        "messages none",
        "export format JSON_BATCHED",
        "uri http://x/?a=b",
        "iot msg id prefix prefix",
        "batch interval 1 min 1 ms",
        "start sequence number 5",
        "size threshold for multipart upload 5 MiB",
        "status level DEBUG",
        "status stream name statuses",
    ):
        assert line in lines


def test_messages_before_the_start_of_an_export_are_not_behind() -> None:
    definition = with_exports(kinesis=[KinesisConfig("k", "x", start_sequence_number=7)])

    assert "behind 3 messages" in squeezed(described(definition, StorageStatus(0, 9, 10)))


def test_control_characters_are_removed() -> None:
    definition = with_exports(http=[HTTPConfig("h", "http://x/\x1b[2J\ny")])
    status = ExportStatus("h", error_message="slow\n\x1b[2Jdown")

    lines = squeezed(described(definition, EMPTY, status))

    assert "uri http://x/ [2J y" in lines
    assert "last error slow [2Jdown" in lines


# The differences


def test_equal_definitions_have_no_differences() -> None:
    assert list(difference_lines(FULL, msgspec.structs.replace(FULL))) == []


def test_changed_fields_show_old_and_new_values() -> None:
    changed = msgspec.structs.replace(
        FULL,
        max_size=2_000_000_000,
        time_to_live_millis=None,
        persistence=Persistence.File,
        flush_on_write=False,
    )

    assert list(difference_lines(FULL, changed)) == [
        "max size: 1 GB -> 2 GB",
        "time to live: 1 h -> none",
        "persistence: Memory -> File",
        "flush on write: yes -> no",
    ]


def test_export_differences_are_shown() -> None:
    before = with_exports(
        kinesis=[KinesisConfig("a", "one", priority=3)],
        s3_task_executor=[S3ExportTaskExecutorConfig("b")],
        iot_sitewise=[IoTSiteWiseConfig("c")],
    )
    after = with_exports(
        kinesis=[KinesisConfig("a", "one", batch_size=5, disabled=True)],
        s3_task_executor=[S3ExportTaskExecutorConfig("c")],
        http=[HTTPConfig("d", "http://x")],
    )

    assert sorted(difference_lines(before, after)) == [
        "export a, batch size: default -> 5",
        "export a, priority: 3 -> default",
        "export a, state: active -> paused",
        "export b: removed",
        "export c, kind: iot_sitewise -> s3_task_executor",
        "export d: added",
    ]


def test_disabled_false_equals_disabled_unset() -> None:
    unsaid = with_exports(kinesis=[KinesisConfig("k", "x")])
    said = with_exports(kinesis=[KinesisConfig("k", "x", disabled=False)])

    assert list(difference_lines(unsaid, said)) == []
