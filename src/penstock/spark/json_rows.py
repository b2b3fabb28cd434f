"""Encoding of rows as JSON, in the format of Spark's to_json.

Null fields are omitted, binary is base64, keys of maps are strings. Unlike in to_json, times keep
their microseconds and are in UTC, intervals are ISO 8601 durations, and NaN and infinity are null.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    FractionalType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from penstock.errors import SettingError

_KEYS = (StringType, NumericType, DateType, TimestampType, TimestampNTZType)
_VALUES = (*_KEYS, BinaryType, BooleanType, DayTimeIntervalType, NullType, TimeType)

# Converts a value from Arrow for msgspec; None if no conversion is necessary.
Conversion: TypeAlias = Callable[[Any], Any] | None


class RowEncoder:
    """Encodes rows of a schema as JSON; SettingError if a type of the schema has no JSON form."""

    def __init__(self, schema: StructType) -> None:
        if not schema.fields:
            raise SettingError("there are no columns: expected one or more to write as JSON")
        self._names = schema.names
        self._conversions = [_conversion(field.dataType, field.name) for field in schema.fields]
        self._encode = msgspec.json.Encoder(decimal_format="number").encode

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        columns = [
            _convert_all(_values(column), conversion)
            for column, conversion in zip(batch.columns, self._conversions, strict=True)
        ]
        encode, names = self._encode, self._names
        return [
            encode({name: item for name, item in zip(names, row, strict=True) if item is not None})
            for row in zip(*columns, strict=True)
        ]


def _conversion(kind: DataType, name: str) -> Conversion:
    if isinstance(kind, StructType):
        return _struct_conversion(kind, name)
    if isinstance(kind, ArrayType):
        return _array_conversion(kind, name)
    if isinstance(kind, MapType):
        return _map_conversion(kind, name)
    if not isinstance(kind, _VALUES):
        raise _no_json(name, kind.simpleString())
    return None


def _struct_conversion(kind: StructType, name: str) -> Conversion:
    conversions = [_conversion(field.dataType, f"{name}.{field.name}") for field in kind.fields]

    def convert(value: dict[str, Any]) -> dict[str, Any]:
        return {
            key: item if conversion is None else conversion(item)
            for (key, item), conversion in zip(value.items(), conversions, strict=True)
            if item is not None
        }

    return convert


def _array_conversion(kind: ArrayType, name: str) -> Conversion:
    conversion = _conversion(kind.elementType, name)
    if conversion is None:
        return None
    return lambda values: _convert_all(values, conversion)


def _map_conversion(kind: MapType, name: str) -> Conversion:
    if not isinstance(kind.keyType, _KEYS):
        raise _no_json(name, f"a map with keys of {kind.keyType.simpleString()}")
    # The encoder turns keys of other types into strings.
    key_conversion = str if isinstance(kind.keyType, FractionalType) else None
    conversion = _conversion(kind.valueType, name)
    if key_conversion is None and conversion is None:
        return dict

    def convert(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        keys, values = zip(*pairs, strict=True) if pairs else ((), ())
        return dict(
            zip(_convert_all(keys, key_conversion), _convert_all(values, conversion), strict=True)
        )

    return convert


def _convert_all(values: Sequence[Any], conversion: Conversion) -> Sequence[Any]:
    if conversion is None:
        return values
    return [None if value is None else conversion(value) for value in values]


def _no_json(name: str, kind: str) -> SettingError:
    return SettingError(
        f"column {name} is {kind}, which cannot be written as JSON: cast it, or leave it out"
    )


def _values(column: pa.Array[Any]) -> Sequence[Any]:
    kind = column.type
    if isinstance(kind, pa.TimestampType) and kind.tz is not None:
        # `to_pylist` looks up the zone for each value, which is slower than all other steps.
        times: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        try:
            return [None if time is None else time.replace(tzinfo=dt.UTC) for time in times]
        except AttributeError:  # for other years the list has numbers
            raise ValueError("a time is not in the years 1 to 9999") from None
    if _has_floats(kind):
        # Converted through strings, so that 0.1 does not become 0.10000000149011612.
        column = column.cast(_replace(kind, pa.string()))
    plain: pa.Array[Any] = column.cast(_replace(kind, pa.float64()))
    return plain.to_pylist()


def _has_floats(kind: pa.DataType) -> bool:
    children = (kind.field(index).type for index in range(kind.num_fields))
    return pa.types.is_float32(kind) or any(map(_has_floats, children))


def _replace(kind: pa.DataType, floats: pa.DataType) -> pa.DataType:
    """Returns the type with another type for its floats, and with its times in UTC."""
    if pa.types.is_float32(kind):
        return floats
    if isinstance(kind, pa.TimestampType) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if isinstance(kind, pa.StructType):
        return pa.struct([(field.name, _replace(field.type, floats)) for field in kind])
    if isinstance(kind, pa.MapType):
        return pa.map_(_replace(kind.key_type, floats), _replace(kind.item_type, floats))
    if isinstance(kind, pa.ListType):
        return pa.list_(_replace(kind.value_type, floats))
    return kind
