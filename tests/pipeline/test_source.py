"""The format as Spark knows it: who reads and who writes."""

from __future__ import annotations

from pathlib import Path

from penstock.model.exporting import Lane
from penstock.pipeline.planning import LaneReader
from penstock.pipeline.sink import LaneWriter
from penstock.pipeline.source import SCHEMA, ExportsDataSource
from tests.pipeline.slices import options_for


def test_a_query_gets_the_source_and_the_sink_of_its_lane_without_a_connection(
    tmp_path: Path,
) -> None:
    # Nobody is there.
    options = options_for(Lane.recovering, tmp_path, host="127.0.0.1", port="1", token="t")

    source = ExportsDataSource(options.to_spark())

    assert source.name() == "penstock-exports"
    assert source.schema() == SCHEMA
    reader = source.streamReader(SCHEMA)
    assert isinstance(reader, LaneReader)
    assert reader.initialOffset() == {"plan": 0}
    assert isinstance(source.streamWriter(SCHEMA, overwrite=False), LaneWriter)
