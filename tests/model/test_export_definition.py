"""The kinds of exports, under the keys that the AWS clients use."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from msgspec import inspect

from penstock.errors import InvalidRequestException
from penstock.model import (
    ExportConfig,
    ExportDefinition,
    ExportStatus,
    HTTPConfig,
    IoTAnalyticsConfig,
    IoTSiteWiseConfig,
    KinesisConfig,
    MessageStreamDefinition,
    S3ExportTaskExecutorConfig,
    from_wire,
    to_wire,
)
from penstock.model.export_definition import (
    CONFIG_OF_KIND,
    batch_size_of,
    messages_behind,
    next_number,
)

from .samples import COMPLETE_EXPORTS, EXPORTS, Json, with_export

KINDS: dict[str, type[ExportConfig]] = {
    field.encode_name: CONFIG_OF_KIND[field.name]
    for field in msgspec.structs.fields(ExportDefinition)
}
each_kind = pytest.mark.parametrize("group", KINDS)


def test_definition_has_a_list_for_each_kind() -> None:
    empty: Json = {group: [] for group in EXPORTS}

    assert set(EXPORTS) == set(COMPLETE_EXPORTS) == set(KINDS)
    assert to_wire(from_wire(empty, ExportDefinition)) == empty
    assert to_wire(ExportDefinition()) == {}


def test_types_of_the_lists_are_the_union_of_configurations() -> None:
    assert {
        "http": HTTPConfig,
        "iot_analytics": IoTAnalyticsConfig,
        "kinesis": KinesisConfig,
        "iot_sitewise": IoTSiteWiseConfig,
        "s3_task_executor": S3ExportTaskExecutorConfig,
    }.items() <= CONFIG_OF_KIND.items()
    assert set(CONFIG_OF_KIND.values()) == set(get_args(ExportConfig))


@each_kind
def test_default_batch_size_is_the_limit_of_the_field(group: str) -> None:
    config = from_wire(EXPORTS[group], KINDS[group])
    fields = {field.name: field for field in msgspec.structs.fields(KINDS[group])}

    assert batch_size_of(config) == KINDS[group].max_batch_size
    if "batch_size" in fields:
        assert batch_size_of(msgspec.structs.replace(config, batch_size=1)) == 1
        limits = inspect.type_info(fields["batch_size"].type).types  # type: ignore[attr-defined]
        assert max(getattr(each, "le", 0) or 0 for each in limits) == KINDS[group].max_batch_size
    else:
        assert batch_size_of(config) == 1


def test_labels_are_unique() -> None:
    labels = {config.label for config in CONFIG_OF_KIND.values()}

    assert len(labels) == len(CONFIG_OF_KIND)
    assert all(labels)


@each_kind
def test_destination_is_a_text(group: str) -> None:
    assert from_wire(EXPORTS[group], KINDS[group]).destination


def test_destination_shows_no_password() -> None:
    config = HTTPConfig("h", "https://me:secret@host/a@b")

    assert config.destination == "HTTP https://…@host/a@b"


def test_destination_is_the_label_by_default() -> None:
    assert IoTSiteWiseConfig("s").destination == "SiteWise"


@pytest.mark.parametrize("key", ["iotSitewise", "iotSiteWise", "IoTSiteWise", "s3"])
def test_other_spelling_of_a_key_is_ignored(key: str) -> None:
    assert from_wire({key: [{"identifier": "s"}]}, ExportDefinition) == ExportDefinition()


@each_kind
def test_complete_configuration_survives_a_round_trip(group: str) -> None:
    wanted = COMPLETE_EXPORTS[group]

    found = from_wire(wanted, KINDS[group])

    assert to_wire(found) == wanted
    assert {field.encode_name for field in msgspec.structs.fields(KINDS[group])} == set(wanted)
    assert msgspec.json.decode(msgspec.json.encode(found), type=KINDS[group]) == found


@each_kind
def test_unset_fields_are_omitted(group: str) -> None:
    assert to_wire(from_wire(EXPORTS[group], KINDS[group])) == EXPORTS[group]


@each_kind
def test_missing_required_field_is_named_with_its_path(group: str) -> None:
    for field in EXPORTS[group]:
        wanted = with_export(group)
        del wanted["exportDefinition"][group][0][field]

        with pytest.raises(InvalidRequestException) as caught:
            from_wire(wanted, MessageStreamDefinition)

        assert caught.value.message == (
            f"exportDefinition.{group}[0]: object missing required field {field}"
        )


@each_kind
def test_error_has_the_index_of_the_configuration(group: str) -> None:
    wanted = with_export(group)
    wanted["exportDefinition"][group].append({**EXPORTS[group], "priority": 11})

    with pytest.raises(InvalidRequestException, match=rf"{group}\[1\]\.priority is 11"):
        from_wire(wanted, MessageStreamDefinition)


def test_new_export_status_has_no_exported_messages() -> None:
    assert to_wire(ExportStatus("e", 4, 1_700_000_000_000, "denied", 10, 5)) == {
        "exportConfigIdentifier": "e",
        "lastExportedSequenceNumber": 4,
        "lastExportTime": 1_700_000_000_000,
        "errorMessage": "denied",
        "exportedBytesFromStream": 10,
        "exportedMessagesCount": 5,
    }
    # No null for the time, which clients expect to be a number.
    assert "lastExportTime" not in to_wire(ExportStatus("e"))
    assert ExportStatus("e").last_exported_sequence_number == -1


@pytest.mark.parametrize(
    ("start", "last_exported", "oldest", "newest", "behind"),
    [
        (None, -1, 0, -1, 0),
        (None, -1, 0, 9, 10),
        (None, 3, 0, 9, 6),
        (None, 9, 0, 9, 0),
        # Evicted before they were exported.
        (None, 3, 6, 9, 4),
        (None, 3, 10, 9, 0),
        # Before the start of the export.
        (7, -1, 0, 9, 3),
        (7, 8, 0, 9, 1),
        (7, -1, 8, 9, 2),
        # It starts with a future message, or has exported messages that a power cut removed.
        (12, -1, 0, 9, 0),
        (None, 12, 0, 9, 0),
    ],
)
def test_messages_behind_counts_stored_messages_that_are_not_exported(
    start: int | None, last_exported: int, oldest: int, newest: int, behind: int
) -> None:
    config = KinesisConfig("k", "x", start_sequence_number=start)

    assert messages_behind(config, last_exported, oldest, newest) == behind


def test_export_without_a_start_begins_with_the_oldest_message() -> None:
    assert messages_behind(S3ExportTaskExecutorConfig("s"), -1, 2, 9) == 8


@pytest.mark.parametrize(
    ("start", "last", "oldest", "number"),
    [(None, -1, 0, 0), (None, 4, 0, 5), (9, 4, 0, 9), (9, 20, 0, 21), (None, 4, 8, 8)],
)
def test_export_continues_after_the_last_exported_message(
    start: int | None, last: int, oldest: int, number: int
) -> None:
    config = KinesisConfig("k", "x", start_sequence_number=start)
    assert next_number(config, last, oldest) == number
