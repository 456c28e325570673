"""A Spark driver in a process of its own: it reads statements line by line, as JSON, and answers
each with its rows. Its argument are the settings, as a JSON object."""

from __future__ import annotations

import json
import sys
from typing import Any


def main(settings: dict[str, str]) -> None:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.master("local[2]").appName("ags1 engines")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        try:
            rows = [list(row) for row in session.sql(json.loads(line)).collect()]
            print(json.dumps({"rows": rows}, default=str), flush=True)
        except Exception as error:
            print(json.dumps({"error": str(error)}), flush=True)
    session.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
