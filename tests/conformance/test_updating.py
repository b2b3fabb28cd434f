"""Updates: which definitions may replace the current one."""

from __future__ import annotations

import pytest

from tests.support import Json

from .harness import (
    FILE,
    MEMORY,
    OVERWRITE_OLDEST_DATA,
    REJECT_NEW_DATA,
    Client,
    contains,
    for_1_1_sdks,
    refused,
    unique_name,
)

pytestmark = for_1_1_sdks

ROOMY: Json = {"maxSize": 1 << 20, "streamSegmentSize": 4096}


def kinesis(*identifiers: str, **fields: object) -> Json:
    # Disabled, so that no message is exported during a test.
    return {
        "kinesis": [
            {"identifier": identifier, "kinesisStreamName": "k", "disabled": True, **fields}
            for identifier in identifiers
        ]
    }


def exported(client: Client, name: str) -> list[str]:
    statuses = client.describe(name)["exportStatuses"]
    return sorted(status["exportConfigIdentifier"] for status in statuses)


def test_update_replaces_the_definition(client: Client) -> None:
    name = client.create()
    wanted: Json = {
        "maxSize": 1 << 22,
        "streamSegmentSize": 1 << 20,
        "timeToLiveMillis": 120000,
        "strategyOnFull": OVERWRITE_OLDEST_DATA,
        "flushOnWrite": True,
        "exportDefinition": kinesis("k", batchSize=20, priority=2),
    }

    client.update(name, **wanted)

    assert contains(client.describe(name)["definition"], {"name": name, **wanted})


def test_described_definition_can_be_changed_and_sent_back(client: Client) -> None:
    name = client.create(exportDefinition=kinesis("one"))
    described = client.describe(name)["definition"]
    described["maxSize"] *= 2
    described["exportDefinition"]["kinesis"] += kinesis("two")["kinesis"]

    client.update(**described)

    assert client.describe(name)["definition"]["maxSize"] == described["maxSize"]
    assert exported(client, name) == ["one", "two"]


@pytest.mark.parametrize("persistence", [FILE, MEMORY], ids=["file", "memory"])
def test_update_keeps_messages_and_numbers(client: Client, persistence: int) -> None:
    name = client.create(persistence=persistence)
    for payload in (b"a", b"b"):
        client.append(name, payload)

    client.update(name, persistence=persistence, **ROOMY)

    assert client.storage(name) == (0, 1, 2)
    assert [m["payload"] for m in client.read(name, minMessageCount=2)] == [b"a", b"b"]
    assert client.append(name, b"c") == 2


@pytest.mark.parametrize(
    ("before", "after"), [(FILE, MEMORY), (MEMORY, FILE)], ids=["to-memory", "to-file"]
)
def test_update_rejects_another_persistence(client: Client, before: int, after: int) -> None:
    name = client.create(persistence=before)

    with refused("UpdateNotAllowedException", "persistence"):
        client.update(name, persistence=after)

    assert client.describe(name)["definition"].get("persistence", FILE) == before


def test_update_rejects_a_max_size_below_the_current_size(client: Client) -> None:
    name = client.create(**ROOMY)
    for _ in range(8):
        client.append(name, b"x" * 1000)

    with refused("InvalidRequestException", "maxSize"):
        client.update(name, maxSize=4096, streamSegmentSize=1024)

    assert client.describe(name)["definition"]["maxSize"] == ROOMY["maxSize"]
    assert client.storage(name) == (0, 7, 8000)


def test_update_accepts_a_smaller_max_size_that_holds_the_data(client: Client) -> None:
    name = client.create(**ROOMY)
    for _ in range(8):
        client.append(name, b"x" * 1000)

    client.update(name, maxSize=16384, streamSegmentSize=1024)

    assert client.storage(name) == (0, 7, 8000)


def test_update_rejects_a_max_size_below_the_segment_size(client: Client) -> None:
    name = client.create(**ROOMY)

    with refused("InvalidRequestException"):
        client.update(name, maxSize=2048, streamSegmentSize=ROOMY["streamSegmentSize"])

    assert contains(client.describe(name)["definition"], ROOMY)


def test_update_rejects_a_segment_size_above_the_max_size(client: Client) -> None:
    name = client.create(**ROOMY)

    with refused("InvalidRequestException", "streamSegmentSize"):
        client.update(name, maxSize=ROOMY["maxSize"], streamSegmentSize=ROOMY["maxSize"] * 2)

    assert contains(client.describe(name)["definition"], ROOMY)


def test_full_stream_accepts_messages_after_its_max_size_grew(client: Client) -> None:
    name = client.create(maxSize=2048, streamSegmentSize=1024)
    client.append(name, b"x" * 1500)
    with refused("InvalidRequestException", "is full"):
        client.append(name, b"x" * 1500)

    client.update(name, **ROOMY)

    assert client.append(name, b"x" * 1500) == 1


def test_full_stream_accepts_messages_after_an_update_to_overwrite(client: Client) -> None:
    size: Json = {"maxSize": 4096, "streamSegmentSize": 1024}
    name = client.create(**size)
    client.append(name, b"x" * 3000)
    with refused("InvalidRequestException", "is full"):
        client.append(name, b"y" * 3000)

    client.update(name, strategyOnFull=OVERWRITE_OLDEST_DATA, **size)

    assert client.append(name, b"y" * 3000) == 1
    assert client.storage(name) == (1, 1, 3000)


def test_overwriting_stream_rejects_messages_after_an_update_to_reject(client: Client) -> None:
    size: Json = {"maxSize": 4096, "streamSegmentSize": 1024}
    name = client.create(strategyOnFull=OVERWRITE_OLDEST_DATA, **size)
    client.append(name, b"x" * 3000)

    client.update(name, strategyOnFull=REJECT_NEW_DATA, **size)

    with refused("InvalidRequestException", "is full"):
        client.append(name, b"y" * 3000)


def test_update_adds_a_new_export(client: Client) -> None:
    name = client.create(exportDefinition=kinesis("old"))

    client.update(name, exportDefinition=kinesis("old", "new"))

    assert exported(client, name) == ["new", "old"]


def test_update_deletes_a_missing_export(client: Client) -> None:
    name = client.create(exportDefinition=kinesis("stays", "goes"))

    client.update(name, exportDefinition=kinesis("stays"))

    assert exported(client, name) == ["stays"]
    exports = client.describe(name)["definition"]["exportDefinition"]["kinesis"]
    assert [export["identifier"] for export in exports] == ["stays"]


def test_update_changes_the_settings_of_an_export(client: Client) -> None:
    name = client.create(exportDefinition=kinesis("k", batchSize=10))

    client.update(name, exportDefinition=kinesis("k", batchSize=20))

    assert exported(client, name) == ["k"]
    [export] = client.describe(name)["definition"]["exportDefinition"]["kinesis"]
    assert export["batchSize"] == 20


def test_export_can_be_paused_and_resumed(client: Client) -> None:
    name = client.create(exportDefinition=kinesis("k"))

    for disabled in (False, True):
        client.update(name, exportDefinition=kinesis("k", disabled=disabled))
        [export] = client.describe(name)["definition"]["exportDefinition"]["kinesis"]
        assert export.get("disabled", False) is disabled


def test_update_adds_exports_of_every_type(client: Client) -> None:
    name = client.create()
    wanted: Json = {
        "http": [{"identifier": "h", "uri": "http://127.0.0.1:9/", "exportFormat": 0}],
        "iotAnalytics": [{"identifier": "a", "iotChannel": "c"}],
        "IotSitewise": [{"identifier": "w"}],
        "s3TaskExecutor": [{"identifier": "s"}],
        **kinesis("k"),
    }

    client.update(name, exportDefinition=wanted)

    assert contains(client.describe(name)["definition"]["exportDefinition"], wanted)
    assert exported(client, name) == ["a", "h", "k", "s", "w"]


@pytest.mark.parametrize("start", [2, 3])
def test_update_rejects_an_export_start_at_or_beyond_the_newest_message(
    client: Client, start: int
) -> None:
    name = client.create()
    for _ in range(3):
        client.append(name, b"x")

    with refused("InvalidRequestException", "startSequenceNumber"):
        client.update(name, exportDefinition=kinesis("k", startSequenceNumber=start))

    assert exported(client, name) == []


def test_update_accepts_an_export_start_before_the_newest_message(client: Client) -> None:
    name = client.create()
    for _ in range(3):
        client.append(name, b"x")

    client.update(name, exportDefinition=kinesis("k", startSequenceNumber=1))

    [export] = client.describe(name)["definition"]["exportDefinition"]["kinesis"]
    assert export["startSequenceNumber"] == 1


def test_update_resets_omitted_fields_to_their_defaults(client: Client) -> None:
    name = client.create(
        timeToLiveMillis=120000, flushOnWrite=True, exportDefinition=kinesis("k"), **ROOMY
    )

    client.update(name)

    described = client.describe(name)["definition"]
    assert described["maxSize"] == 256 * 1024 * 1024
    assert described["streamSegmentSize"] == 16 * 1024 * 1024
    assert "timeToLiveMillis" not in described
    assert described.get("flushOnWrite", False) is False
    assert exported(client, name) == []


def test_s3_export_requires_an_existing_status_stream(client: Client) -> None:
    name, status_stream = client.create(), unique_name()
    s3 = {"identifier": "s3", "statusConfig": {"statusStreamName": status_stream}}

    with refused("InvalidRequestException", status_stream):
        client.update(name, exportDefinition={"s3TaskExecutor": [s3]})

    assert exported(client, name) == []


def test_update_of_an_unknown_stream_is_not_found(client: Client) -> None:
    name = unique_name()

    with refused("ResourceNotFoundException"):
        client.update(name)

    assert name not in client.list_streams()
