from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from penstock.errors import SettingError
from penstock.spark.batch import PenstockReader
from penstock.spark.source import SCHEMA, PenstockDataSource
from penstock.spark.streaming import PenstockStreamReader


def test_each_kind_of_query_has_a_reader() -> None:
    source = PenstockDataSource({"stream": "s"})
    assert isinstance(source.reader(SCHEMA), PenstockReader)
    assert isinstance(source.streamReader(SCHEMA), PenstockStreamReader)


def test_unknown_option_is_refused_first() -> None:
    with pytest.raises(SettingError, match=r"unknown option streem: did you mean stream\?"):
        PenstockDataSource({"streem": "s"})


def test_user_schema_is_refused() -> None:
    other = StructType([StructField("temperature", LongType())])
    source = PenstockDataSource({"stream": "s"})
    for create in (source.reader, source.streamReader):
        with pytest.raises(SettingError, match="parse payloads with from_json"):
            create(other)


def test_source_and_readers_can_be_pickled() -> None:
    source = PenstockDataSource({"stream": "s"})
    for each in (source, source.reader(SCHEMA), source.streamReader(SCHEMA)):
        assert type(pickle.loads(pickle.dumps(each))) is type(each)
