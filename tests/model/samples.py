"""Valid maps as on the wire and in JSON: complete ones and minimal ones."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

# The required fields of every kind of export, by the key of its list.
EXPORTS: dict[str, Json] = {
    "http": {"identifier": "h", "uri": "http://localhost/"},
    "iotAnalytics": {"identifier": "a", "iotChannel": "c"},
    "kinesis": {"identifier": "k", "kinesisStreamName": "n"},
    "IotSitewise": {"identifier": "s"},
    "s3TaskExecutor": {"identifier": "3"},
}

# The export definition that the broker describes for a stream without exports.
NO_EXPORTS: Json = {group: [] for group in EXPORTS}

_BATCHES: Json = {
    "batchSize": 2,
    "batchIntervalMillis": 60_000,
    "priority": 3,
    "startSequenceNumber": 4,
    "disabled": True,
}

COMPLETE_EXPORTS: dict[str, Json] = {
    "http": {**EXPORTS["http"], **_BATCHES, "exportFormat": 1},
    "iotAnalytics": {**EXPORTS["iotAnalytics"], "iotMsgIdPrefix": "p", **_BATCHES},
    "kinesis": {**EXPORTS["kinesis"], **_BATCHES},
    "IotSitewise": {**EXPORTS["IotSitewise"], **_BATCHES},
    "s3TaskExecutor": {
        **EXPORTS["s3TaskExecutor"],
        "sizeThresholdForMultipartUploadBytes": 5_242_880,
        "priority": 3,
        "disabled": False,
        "statusConfig": {"statusLevel": 2, "statusStreamName": "st"},
    },
}


def definition(**fields: Any) -> Json:
    return {"name": "s", "strategyOnFull": 0, **fields}


def with_export(group: str, **fields: Any) -> Json:
    return definition(exportDefinition={group: [{**EXPORTS[group], **fields}]})


def complete_definition() -> Json:
    return {
        "name": "some stream",
        "maxSize": 4096,
        "streamSegmentSize": 2048,
        "timeToLiveMillis": 60_000,
        "strategyOnFull": 1,
        "persistence": 1,
        "flushOnWrite": True,
        "exportDefinition": {
            group: [{**export}, {**EXPORTS[group], "identifier": f"second {group}"}]
            for group, export in COMPLETE_EXPORTS.items()
        },
    }


def s3_task() -> Json:
    return {
        "inputUrl": "file:///data/a.bin",
        "bucket": "some-bucket",
        "key": "a/!{timestamp:yyyy}/b",
        "userMetadata": {"site": "north"},
    }


def status_message() -> Json:
    return {
        "eventType": 0,
        "statusLevel": 2,
        "status": 1,
        "statusContext": {
            "s3ExportTaskDefinition": s3_task(),
            "exportIdentifier": "e",
            "streamName": "s",
            "sequenceNumber": 7,
        },
        "message": "no such bucket",
        "timestampEpochMs": 1_700_000_000_000,
    }


def entry() -> Json:
    return {
        "entryId": "e-1",
        "assetId": "asset",
        "propertyId": "property",
        "propertyAlias": "/turbine/1/rpm",
        "propertyValues": [
            {
                "value": {"doubleValue": 1.5},
                "timestamp": {"timeInSeconds": 1_700_000_000, "offsetInNanos": 5},
                "quality": "GOOD",
            }
        ],
    }
