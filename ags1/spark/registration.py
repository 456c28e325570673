"""Registers a data source with a Spark session. Independent of what the source reads."""

from __future__ import annotations

from typing import Any


def register_source(spark: Any, source: type[Any]) -> None:
    """Register a Python data source with a session, and make this the thread's active session.

    With a classic session, ``save`` finds a Python data source only in the session that is active
    in the thread. PySpark makes a session active only in the thread that has started it."""
    spark.dataSource.register(source)
    if hasattr(spark, "sparkContext"):
        spark.createDataFrame([], "none int")  # this makes the session active
