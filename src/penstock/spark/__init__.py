"""Streams as DataFrames: format("penstock") for Spark, and a configured Spark session.

Requires PySpark, which the extra `spark` installs.
"""

from __future__ import annotations

import importlib.util

from penstock.distribution import how_to_install

if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
    raise ImportError(f"Spark is not installed: {how_to_install('spark')}")

from penstock.spark.spark_session import register, session

__all__ = ["register", "session"]
