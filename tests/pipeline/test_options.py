"""What a query is started with: it survives Spark, and no token is shown."""

from __future__ import annotations

from pathlib import Path

from penstock.model.exporting import Lane
from penstock.pipeline.options import PipelineOptions
from tests.pipeline.slices import options_for

_TOKEN = "0123456789abcdef"  # nobody's


def options(tmp_path: Path) -> PipelineOptions:
    return options_for(Lane.steady, tmp_path, host="127.0.0.1", port="8088", token=_TOKEN)


def test_options_are_the_same_behind_spark(tmp_path: Path) -> None:
    given = options(tmp_path)

    found = PipelineOptions.from_spark(given.to_spark())

    assert found == given
    assert found.place() == given.place()
    assert found.place().remote.token == _TOKEN


def test_what_holds_a_token_is_called_so_that_spark_does_not_show_it(tmp_path: Path) -> None:
    # Spark's spark.redaction.regex, as it comes.
    assert list(options(tmp_path).to_spark()) == ["secret"]
