"""Streams as DataFrames: format("penstock") for Spark, and a session that is set up right.

Needs PySpark, which the extra `penstock[spark]` brings.
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
    raise ImportError("Spark is not installed: pip install 'penstock[spark]'")

from penstock.spark.spark_session import register, session

__all__ = ["register", "session"]
