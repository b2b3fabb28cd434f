"""Stream definitions: required fields, defaults, and encoding."""

from __future__ import annotations

import cbor2
import msgspec
import pytest

from penstock.errors import InvalidRequestException
from penstock.model import (
    ExportStatus,
    MessageStreamDefinition,
    MessageStreamInfo,
    Persistence,
    StorageStatus,
    StrategyOnFull,
    from_wire,
    to_wire,
)

from .samples import EXPORTS, complete_definition, definition


def test_complete_definition_survives_a_round_trip() -> None:
    wanted = complete_definition()

    found = from_wire(wanted, MessageStreamDefinition)

    assert to_wire(found) == wanted
    assert from_wire(cbor2.loads(cbor2.dumps(to_wire(found))), MessageStreamDefinition) == found
    assert msgspec.json.decode(msgspec.json.encode(found), type=MessageStreamDefinition) == found


def test_missing_fields_have_the_documented_defaults() -> None:
    found = from_wire(definition(), MessageStreamDefinition)

    assert to_wire(found) == {
        "name": "s",
        "maxSize": 268_435_456,
        "streamSegmentSize": 16_777_216,
        "strategyOnFull": 0,
        "persistence": 0,
        "flushOnWrite": False,
        "exportDefinition": {},
    }
    assert found.strategy_on_full is StrategyOnFull.RejectNewData
    assert found.persistence is Persistence.File
    assert found.time_to_live_millis is None


@pytest.mark.parametrize("missing", ["name", "strategyOnFull"])
def test_name_and_strategy_are_required(missing: str) -> None:
    wanted = {key: value for key, value in definition().items() if key != missing}

    with pytest.raises(InvalidRequestException, match=f"missing required field {missing}"):
        from_wire(wanted, MessageStreamDefinition)


def test_exports_lists_all_kinds() -> None:
    found = from_wire(complete_definition(), MessageStreamDefinition)

    assert [export.identifier for export in found.exports()] == [
        identifier
        for group, export in EXPORTS.items()
        for identifier in (export["identifier"], f"second {group}")
    ]


def test_duplicate_identifier_is_rejected() -> None:
    exports = {group: [{**export, "identifier": "same"}] for group, export in EXPORTS.items()}
    alone = [{group: same} for group, same in exports.items()]

    for few in alone:
        from_wire(definition(exportDefinition=few), MessageStreamDefinition).validate_exports()
    for many in (exports, {"kinesis": exports["kinesis"] * 2}):
        with pytest.raises(InvalidRequestException, match="'same' is used twice"):
            from_wire(definition(exportDefinition=many), MessageStreamDefinition).validate_exports()


def test_description_has_wire_names_and_no_nulls() -> None:
    info = MessageStreamInfo(
        from_wire(definition(), MessageStreamDefinition),
        StorageStatus(0, -1, 0),
        [ExportStatus("e")],
    )

    described = to_wire(info)

    assert described.keys() == {"definition", "storageStatus", "exportStatuses"}
    assert described["storageStatus"] == {
        "oldestSequenceNumber": 0,
        "newestSequenceNumber": -1,
        "totalBytes": 0,
    }
    assert described["exportStatuses"] == [
        {
            "exportConfigIdentifier": "e",
            "lastExportedSequenceNumber": -1,
            "errorMessage": "",
            "exportedBytesFromStream": 0,
            "exportedMessagesCount": 0,
        }
    ]
