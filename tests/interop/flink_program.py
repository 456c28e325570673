"""Flink's SQL in a process of its own: it reads statements line by line, as JSON, and answers each
with its rows; an empty one, with more rows of the last query. Runs in an environment that has
PyFlink. Its arguments are ``batch`` or ``streaming``, and the statement that makes the catalog."""

# mypy: ignore-errors
from __future__ import annotations

import itertools
import json
import sys


def main(mode: str, catalog: str) -> None:
    from pyflink.table import EnvironmentSettings, TableEnvironment

    builder = EnvironmentSettings.new_instance()
    builder = builder.in_batch_mode() if mode == "batch" else builder.in_streaming_mode()
    session = TableEnvironment.create(builder.build())
    session.get_config().set("parallelism.default", "1")
    session.get_config().set("execution.checkpointing.interval", "1s")
    session.execute_sql(catalog)
    found = iter(())
    for line in sys.stdin:
        statement, count = json.loads(line)
        try:
            if statement:
                result = session.execute_sql(statement)
                if statement.startswith("SELECT"):
                    found = result.collect()
                else:
                    result.wait()
            rows = [list(row) for row in itertools.islice(found, count)]
            print(json.dumps({"rows": rows}, default=repr), flush=True)
        except Exception as error:
            print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
