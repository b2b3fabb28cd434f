"""Rows as JSON, compared with Spark's to_json."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import struct, to_json
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)

from penstock.client.blocking import StreamManagerClient
from penstock.errors import SettingError
from penstock.spark.json_rows import RowEncoder
from tests.support import BrokerProcess

Encode: TypeAlias = Callable[[DataFrame], list[str]]


@pytest.fixture(scope="module")
def encode(broker: BrokerProcess, client: StreamManagerClient) -> Encode:
    """Returns a function that writes rows to a stream and returns its messages."""

    def write_and_read(rows: DataFrame) -> list[str]:
        stream = uuid4().hex
        writer = rows.coalesce(1).write.format("penstock").mode("append")
        writer.options(root=str(broker.root), stream=stream, createStream=True, payload="json")
        writer.save()
        return [message.payload.decode() for message in client.read_all(stream)]

    return write_and_read


def encode_with_spark(rows: DataFrame) -> list[str]:
    return [row.json for row in rows.select(to_json(struct("*")).alias("json")).collect()]


ALIKE = {
    "numbers": "1Y, 2S, 3, 4L, -9223372036854775808L, 12345678901234567890.12BD, 0.1D, 1e300D",
    "floats": "0.1F, 16777216F, cast(null AS float), array(0.1F, 0.3F), struct(0.7F AS f)",
    "floats in a map": "map('a', 0.1F, 'b', null), map(1, array(0.1F))",
    "texts": "'', 'é € 😀', 'quotes \" and \\\\ and \\n', cast(null AS string)",
    "binary": "X'00ff10', X'', cast(null AS binary)",
    "booleans": "true, false, cast(null AS boolean)",
    "nothing": "null, array(null), struct(null AS a)",
    "dates": "date'2024-02-29', date'0001-01-01', date'9999-12-31'",
    "arrays": "array(1, null, 3), array(), array(array(1), array(), null), array('x', 'y')",
    "structs": "struct(1 AS a, null AS b, struct('x' AS c) AS d), cast(null AS struct<a: int>)",
    "maps": "map('a', 1, 'b', null), map(1, 'x'), cast(map() AS map<string, int>)",
    "maps with numbers as keys": "map(2.5BD, true), map(0.1F, 1), map(1.5D, array(struct(1 AS a)))",
    "all at once": "array(struct(map('k', array(struct(1 AS a, null AS b), null)) AS m), null)",
    "names": '1 AS `with space`, 2 AS `quote"`, 3 AS `class`, 4 AS `é`, 5 AS `a.b`',
}


@pytest.fixture(scope="module")
def alike(shared_session: SparkSession, encode: Encode) -> tuple[Any, Any]:
    """All values in one row, encoded by Penstock and by Spark; a job for each would be slow."""
    columns = ", ".join(f"struct({values}) AS `{name}`" for name, values in ALIKE.items())
    rows = shared_session.sql(f"SELECT {columns}")
    return json.loads(encode(rows)[0]), json.loads(encode_with_spark(rows)[0])


@pytest.mark.parametrize("name", ALIKE)
def test_row_equals_the_result_of_to_json(alike: tuple[Any, Any], name: str) -> None:
    by_penstock, by_spark = alike

    assert by_penstock[name] == by_spark[name]
    assert list(by_penstock[name]) == list(by_spark[name])


def test_columns_keep_their_order(spark: SparkSession, encode: Encode) -> None:
    assert encode(spark.sql("SELECT 1 AS z, 2 AS a, struct(3 AS y, 4 AS b) AS m")) == [
        '{"z":1,"a":2,"m":{"y":3,"b":4}}'
    ]


def test_rows_keep_their_order(spark: SparkSession, encode: Encode) -> None:
    rows = spark.sql("SELECT id, if(id % 3 = 0, null, id / 2) AS half FROM range(0, 10, 1, 1)")

    assert encode(rows) == encode_with_spark(rows)


def test_row_of_nulls_is_an_empty_object(spark: SparkSession, encode: Encode) -> None:
    assert encode(spark.sql("SELECT cast(null AS int) AS a, null AS b")) == ["{}"]


def test_times_keep_their_microseconds_and_are_in_utc(spark: SparkSession, encode: Encode) -> None:
    time = "timestamp'2024-07-02 03:04:05.678901'"
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")

    encoded = encode(spark.sql(f"SELECT {time} AS time, array({time}) AS times"))

    utc = "2024-07-02T01:04:05.678901Z"
    assert json.loads(encoded[0]) == {"time": utc, "times": [utc]}


def test_time_without_a_zone_is_written_without_one(spark: SparkSession, encode: Encode) -> None:
    rows = spark.sql("SELECT timestamp_ntz'2024-07-02 03:04:05.6789' AS t, time'03:04:05' AS u")

    assert encode(rows) == ['{"t":"2024-07-02T03:04:05.678900","u":"03:04:05"}']


def test_time_outside_years_1_to_9999_is_refused() -> None:
    schema = StructType().add("time", TimestampType())
    column = pa.array([2**60]).cast(pa.timestamp("us", "UTC"))

    with pytest.raises(ValueError, match="a time is not in the years 1 to 9999"):
        RowEncoder(schema).encode(pa.record_batch({"time": column}))


def test_dates_are_iso_8601_also_as_keys(spark: SparkSession, encode: Encode) -> None:
    rows = spark.sql("SELECT map(date'2024-02-29', date'2024-03-01') AS next")

    assert encode(rows) == ['{"next":{"2024-02-29":"2024-03-01"}}']


def test_interval_is_an_iso_8601_duration(spark: SparkSession, encode: Encode) -> None:
    rows = spark.sql("SELECT interval '1 02:03:04.5' day to second AS i, interval '90' minute AS m")

    assert encode(rows) == ['{"i":"P1DT7384.5S","m":"PT5400S"}']


def test_nan_and_infinity_are_null(spark: SparkSession, encode: Encode) -> None:
    rows = spark.sql("SELECT double('NaN') AS n, float('-Infinity') AS i, 1.5D AS x")

    assert encode(rows) == ['{"n":null,"i":null,"x":1.5}']


def test_rows_without_columns_are_refused() -> None:
    # Spark itself rejects such rows earlier.
    with pytest.raises(SettingError, match="there are no columns: expected one or more"):
        RowEncoder(StructType())


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (YearMonthIntervalType(), "interval year to month"),
        (VariantType(), "variant"),
        (MapType(BooleanType(), StringType()), "a map with keys of boolean"),
        (MapType(BinaryType(), StringType()), "a map with keys of binary"),
        (
            MapType(StructType().add("k", "integer"), StringType()),
            "a map with keys of struct<k:int>",
        ),
    ],
)
def test_type_without_json_is_refused(kind: DataType, name: str) -> None:
    def error_of(schema: StructType) -> Any:
        with pytest.raises(SettingError) as caught:
            RowEncoder(schema)
        return str(caught.value)

    advice = "which cannot be written as JSON: cast it, or leave it out"
    assert (
        error_of(StructType().add("a", "integer").add("b", kind)) == f"column b is {name}, {advice}"
    )
    inner = StructType().add("outer", StructType().add("inner", kind))
    assert error_of(inner) == f"column outer.inner is {name}, {advice}"
