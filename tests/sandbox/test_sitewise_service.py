"""IoT SiteWise of the sandbox, with boto3."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError
from mypy_boto3_iotsitewise.client import IoTSiteWiseClient

from penstock.sandbox.local_sandbox import Sandbox

ASSET = "11111111-2222-3333-4444-555555555555"
PROPERTY = "66666666-7777-8888-9999-000000000000"
DAY = 24 * 3600


def value(number: float = 1.0, age: int = 0, nanos: int = 0, **more: Any) -> Any:
    """A value of this age in seconds, relative to the import of this file."""
    return {
        "value": {"doubleValue": number},
        "timestamp": {"timeInSeconds": NOW - age, "offsetInNanos": nanos},
        "quality": "GOOD",
        **more,
    }


NOW = int(time.time())


def entry(alias: str, *values: Any, entry_id: str = "e") -> Any:
    return {"entryId": entry_id, "propertyAlias": alias, "propertyValues": values or [value()]}


def errors_of(answer: Any) -> dict[str, list[str]]:
    """Error codes by entry."""
    return {
        failed["entryId"]: [error["errorCode"] for error in failed["errors"]]
        for failed in answer["errorEntries"]
    }


def history(sitewise: IoTSiteWiseClient, alias: str, **more: Any) -> list[float]:
    answer = sitewise.get_asset_property_value_history(propertyAlias=alias, **more)
    return [found["value"]["doubleValue"] for found in answer["assetPropertyValueHistory"]]


def test_values_are_read_in_order_of_their_timestamps(
    sandbox: Sandbox, sitewise: IoTSiteWiseClient
) -> None:
    answer = sitewise.batch_put_asset_property_value(
        entries=[
            entry("/ordered", value(3.0, age=1), value(1.0, age=3), entry_id="a"),
            entry("/ordered", value(2.0, age=2, nanos=7), entry_id="b"),
        ]
    )

    assert answer["errorEntries"] == []
    assert history(sitewise, "/ordered") == [1.0, 2.0, 3.0]
    assert history(sitewise, "/ordered", timeOrdering="DESCENDING") == [3.0, 2.0, 1.0]
    latest = sitewise.get_asset_property_value(propertyAlias="/ordered")["propertyValue"]
    assert latest == value(3.0, age=1)
    kept = sandbox.records("iotsitewise", "/ordered")
    assert [record["entryId"] for record in kept] == ["a", "b"]
    assert kept[0]["time"] > NOW * 1000
    assert kept[1]["propertyValues"] == [value(2.0, age=2, nanos=7)]


def test_history_has_pages_and_bounds(sitewise: IoTSiteWiseClient) -> None:
    sitewise.batch_put_asset_property_value(
        entries=[entry("/paged", *(value(float(age), age=age) for age in range(5)))]
    )

    pages = sitewise.get_paginator("get_asset_property_value_history").paginate(
        propertyAlias="/paged", PaginationConfig={"PageSize": 2}
    )
    assert [len(page["assetPropertyValueHistory"]) for page in pages] == [2, 2, 1]
    # The start is exclusive, the end is inclusive.
    start, end = (datetime.fromtimestamp(NOW - age, UTC) for age in (3, 1))
    assert history(sitewise, "/paged", startDate=start, endDate=end) == [2.0, 1.0]
    assert history(sitewise, "/paged", qualities=["BAD"]) == []


def test_value_replaces_one_of_the_same_time_and_quality(
    sitewise: IoTSiteWiseClient,
) -> None:
    for sent in (value(1.0), value(2.0), value(3.0, quality="BAD")):
        sitewise.batch_put_asset_property_value(entries=[entry("/replaced", sent)])

    assert sorted(history(sitewise, "/replaced")) == [2.0, 3.0]


def test_property_with_identifiers_and_values_of_all_types(
    sandbox: Sandbox, sitewise: IoTSiteWiseClient
) -> None:
    values: list[Any] = [
        {"stringValue": "text"},
        {"integerValue": -7},
        {"booleanValue": False},
        {"nullValue": {"valueType": "D"}},
    ]

    answer = sitewise.batch_put_asset_property_value(
        entries=[
            {
                "entryId": "e",
                "assetId": ASSET,
                "propertyId": PROPERTY,
                "propertyValues": [
                    {"value": sent, "timestamp": {"timeInSeconds": NOW - age}}
                    for age, sent in enumerate(values)
                ],
            }
        ]
    )

    assert answer["errorEntries"] == []
    (kept,) = sandbox.records("iotsitewise", f"{ASSET}/{PROPERTY}")
    assert [found["value"] for found in kept["propertyValues"]] == values
    latest = sitewise.get_asset_property_value(assetId=ASSET, propertyId=PROPERTY)
    assert latest["propertyValue"]["value"] == {"stringValue": "text"}


@pytest.mark.parametrize(
    ("age", "code"),
    [
        (7 * DAY + 60, "TimestampOutOfRangeException"),
        (7 * DAY - 600, None),
        (-540, None),
        (-3600, "TimestampOutOfRangeException"),
    ],
)
def test_old_and_future_timestamps_are_rejected(
    sitewise: IoTSiteWiseClient, age: int, code: str | None
) -> None:
    # Not relative to the import of this file, which may be long ago on a busy machine.
    sent = value(age=age - (int(time.time()) - NOW))
    answer = sitewise.batch_put_asset_property_value(entries=[entry("/times", sent)])

    assert errors_of(answer) == ({} if code is None else {"e": [code]})


def test_invalid_value_fails_its_entry_or_with_partial_processing_itself(
    sandbox: Sandbox, sitewise: IoTSiteWiseClient
) -> None:
    entries = [
        entry("/bad", value(1.0), value(2.0, age=8 * DAY), entry_id="a"),
        entry("/good", value(3.0), entry_id="b"),
    ]

    answer = sitewise.batch_put_asset_property_value(entries=entries)
    assert errors_of(answer) == {"a": ["TimestampOutOfRangeException"]}
    (error,) = answer["errorEntries"][0]["errors"]
    assert error["timestamps"] == [{"timeInSeconds": NOW - 8 * DAY, "offsetInNanos": 0}]
    assert sandbox.records("iotsitewise", "/bad") == []
    assert len(sandbox.records("iotsitewise", "/good")) == 1

    sitewise.batch_put_asset_property_value(entries=entries, enablePartialEntryProcessing=True)
    (kept,) = sandbox.records("iotsitewise", "/bad")
    assert kept["propertyValues"] == [value(1.0)]


def test_same_property_and_time_twice_in_a_call_is_a_conflict(
    sitewise: IoTSiteWiseClient,
) -> None:
    answer = sitewise.batch_put_asset_property_value(
        entries=[
            entry("/twice", value(1.0), entry_id="a"),
            entry("/twice", value(2.0), entry_id="b"),
            entry("/other", value(3.0), entry_id="c"),
        ]
    )

    assert errors_of(answer) == {"b": ["ConflictingOperationException"]}
    assert history(sitewise, "/twice") == [1.0]


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [entry("/x", entry_id=str(number)) for number in range(11)],
        [entry("/x"), entry("/y")],  # the same entryId
        [entry("/x", entry_id="not this!")],
        [entry("/x", *(value(age=age) for age in range(11)))],
        [entry("/x", value(value={}))],
        [entry("/x", value(value={"doubleValue": 1.0, "stringValue": "1"}))],
        [entry("/x", value(timestamp={"timeInSeconds": 10**16}))],
        [entry("/x", value(quality="FINE"))],
        [{"entryId": "e", "propertyValues": [value()]}],
        [{"entryId": "e", "assetId": ASSET, "propertyValues": [value()]}],
    ],
)
def test_malformed_call_fails_as_a_whole(sitewise: IoTSiteWiseClient, entries: Any) -> None:
    with pytest.raises(ClientError) as raised:
        sitewise.batch_put_asset_property_value(entries=entries)

    assert raised.value.response["Error"]["Code"] == "InvalidRequestException"
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_property_without_values_is_not_found(sitewise: IoTSiteWiseClient) -> None:
    with pytest.raises(sitewise.exceptions.ResourceNotFoundException):
        sitewise.get_asset_property_value(propertyAlias="/nothing")


def test_unsupported_operation_is_an_error(sitewise: IoTSiteWiseClient) -> None:
    with pytest.raises(ClientError, match="the sandbox does not support GET /assets"):
        sitewise.list_assets()


def test_fault_refuses_the_entries_of_one_property(
    sandbox: Sandbox, sitewise: IoTSiteWiseClient
) -> None:
    sandbox.set_fault("iotsitewise", name="/refused", refuse_every=1)

    answer = sitewise.batch_put_asset_property_value(
        entries=[entry("/refused", entry_id="a"), entry("/spared", entry_id="b")]
    )

    assert errors_of(answer) == {"a": ["ThrottlingException"]}
    assert answer["errorEntries"][0]["errors"][0]["timestamps"] == [value()["timestamp"]]
    assert sandbox.records("iotsitewise", "/refused") == []


def test_fault_throttles_with_the_error_of_sitewise(
    sandbox: Sandbox, sitewise: IoTSiteWiseClient
) -> None:
    sandbox.set_fault("iotsitewise", throttle=True)

    with pytest.raises(sitewise.exceptions.ThrottlingException) as raised:
        sitewise.batch_put_asset_property_value(entries=[entry("/x")])

    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 429
