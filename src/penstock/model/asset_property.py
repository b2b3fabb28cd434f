"""SiteWise entries: messages with values of an asset's property."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Self

from msgspec import Meta

from penstock.model.limits import INT32_MAX
from penstock.model.value import REQUIRED, Value

_NO_CONTROLS = r"\A[^\u0000-\u001F\u007F]+\Z"


class Quality(Enum):
    """The quality of a value: `GOOD`, `BAD` or `UNCERTAIN`."""

    GOOD = "GOOD"
    BAD = "BAD"
    UNCERTAIN = "UNCERTAIN"

    def as_dict(self) -> str:
        return self.value

    @classmethod
    def from_dict(cls, d: str) -> Self:
        return cls(d)


class Variant(Value):
    """One value of one type; exactly one of the four fields must be set.

    Integers may be negative: SiteWise accepts them, although the AWS SDKs do not.
    """

    string_value: (
        Annotated[str, Meta(min_length=1, max_length=1024, pattern=_NO_CONTROLS)] | None
    ) = None
    integer_value: Annotated[int, Meta(ge=-INT32_MAX - 1, le=INT32_MAX)] | None = None
    double_value: float | None = None
    boolean_value: bool | None = None


class TimeInNanos(Value):
    """The time of a value.

    Attributes:
        time_in_seconds: Seconds since 1970.
        offset_in_nanos: Nanoseconds after these seconds.
    """

    time_in_seconds: Annotated[int, Meta(ge=1, le=31_556_889_864_403_199)] = REQUIRED
    offset_in_nanos: Annotated[int, Meta(ge=0, le=999_999_999)] | None = None


class AssetPropertyValue(Value):
    """A value with its time.

    Attributes:
        value: The value.
        timestamp: Its time.
        quality: Its quality; good by default.
    """

    value: Variant = REQUIRED
    timestamp: TimeInNanos = REQUIRED
    quality: Quality | None = None


class PutAssetPropertyValueEntry(Value):
    """A message for IoT SiteWise: values of one asset property.

    Attributes:
        entry_id: 1 to 64 letters, digits, `_` and `-`.
        asset_id: The asset; requires `property_id`.
        property_id: The property of the asset; requires `asset_id`.
        property_alias: The alias of the property, instead of the two ids.
        property_values: 1 to 10 values.
    """

    entry_id: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[a-zA-Z0-9_-]+\Z")] = (
        REQUIRED
    )
    asset_id: str | None = None
    property_id: str | None = None
    property_alias: (
        Annotated[str, Meta(min_length=1, max_length=2048, pattern=_NO_CONTROLS)] | None
    ) = None
    property_values: Annotated[list[AssetPropertyValue], Meta(min_length=1, max_length=10)] = (
        REQUIRED
    )
