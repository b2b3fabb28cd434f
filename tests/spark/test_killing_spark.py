"""A query continues from its checkpoint after Spark was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from penstock import StreamManagerClient
from tests.spark import copy_stream
from tests.spark.queries import START_SECONDS
from tests.spark.rows import messages_of, rows_of
from tests.support import QUICK_JAVA, BrokerProcess, clean_environment, wait_until


def test_killed_query_reads_each_message_once(
    spark: SparkSession,
    broker: BrokerProcess,
    create: Callable[..., str],
    client: StreamManagerClient,
    tmp_path: Path,
) -> None:
    stream, output, checkpoint = create(), tmp_path / "output", tmp_path / "checkpoint"
    client.append_messages(stream, [b"%d" % number for number in range(1000)])
    arguments = [str(broker.root), stream, str(output), str(checkpoint)]
    program = subprocess.Popen(
        [sys.executable, copy_stream.__file__, *arguments],
        env=clean_environment(SPARK_SUBMIT_OPTS=QUICK_JAVA),
        start_new_session=True,
    )
    try:
        wait_until((checkpoint / "commits" / "2").exists, "three batches", START_SECONDS)
    finally:
        # Kills the program, its Java and its Python workers together.
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    assert not (checkpoint / "commits" / "9").exists()
    client.append_messages(stream, [b"%d" % number for number in range(1000, 1100)])
    query = copy_stream.make_copy_query(spark, *arguments).trigger(availableNow=True).start()
    assert query.awaitTermination(int(START_SECONDS))
    rows = rows_of(spark.read.parquet(str(output)))
    assert sorted(rows, key=lambda row: row.sequence_number) == messages_of(client, stream)
