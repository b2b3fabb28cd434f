"""SiteWise entries in messages of programs for the AWS SDKs."""

from __future__ import annotations

import json

import msgspec
import pytest

from penstock.errors import InvalidRequestException
from penstock.model import (
    AssetPropertyValue,
    PutAssetPropertyValueEntry,
    Quality,
    TimeInNanos,
    Variant,
    from_wire,
    to_wire,
)

from .samples import entry


def test_complete_entry_survives_a_round_trip() -> None:
    found = msgspec.json.decode(json.dumps(entry()), type=PutAssetPropertyValueEntry)

    assert found == PutAssetPropertyValueEntry(
        entry_id="e-1",
        asset_id="asset",
        property_id="property",
        property_alias="/turbine/1/rpm",
        property_values=[
            AssetPropertyValue(
                Variant(double_value=1.5), TimeInNanos(1_700_000_000, 5), Quality.GOOD
            )
        ],
    )
    assert to_wire(found) == entry()
    assert from_wire(entry(), PutAssetPropertyValueEntry) == found


@pytest.mark.parametrize(
    "value",
    [
        {"stringValue": "on"},
        {"integerValue": -5},
        {"doubleValue": 0.25},
        {"booleanValue": False},
    ],
)
def test_value_has_one_of_four_types_and_false_is_a_value(value: dict[str, object]) -> None:
    assert to_wire(from_wire(value, Variant)) == value


def test_integral_double_may_have_no_decimal_point() -> None:
    # JavaScript sends it so.
    assert from_wire({"doubleValue": 1}, Variant).double_value == 1.0


@pytest.mark.parametrize("missing", ["entryId", "propertyValues"])
def test_missing_required_field_is_named(missing: str) -> None:
    wanted = {key: value for key, value in entry().items() if key != missing}

    with pytest.raises(InvalidRequestException, match=f"missing required field {missing}"):
        from_wire(wanted, PutAssetPropertyValueEntry)


@pytest.mark.parametrize("missing", ["value", "timestamp"])
def test_missing_required_field_of_a_value_is_named_with_its_path(missing: str) -> None:
    wanted = entry()
    del wanted["propertyValues"][0][missing]

    with pytest.raises(InvalidRequestException) as caught:
        from_wire(wanted, PutAssetPropertyValueEntry)

    assert caught.value.message == f"propertyValues[0]: object missing required field {missing}"
