"""A program for ``test_guide``: what docs/spark.md has its readers do, from the top.

``python guide_job.py BLOCKS``, in a new user's home: BLOCKS is a JSON list of the language and the
code of each block. Python runs in one session, and so do the commands of ags1.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from ags1.cli.app import app

_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "OFF",
}


def main(blocks: list[tuple[str, str]]) -> None:
    builder = SparkSession.builder.master("local[2]")
    for name, value in _CONF.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    names: dict[str, Any] = {}
    for language, code in blocks:
        print(f"--- {language}\n{code}", file=sys.stderr, flush=True)
        if language == "python":
            exec(compile(code, "the guide", "exec"), names)
        else:
            for line in code.replace("\\\n", " ").splitlines():
                run(line)
    session.stop()


def run(line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[:1] == ["ags1"]:
        code: Any = None
        try:
            app.main(words[1:])
        except SystemExit as end:
            code = end.code
        assert code == 0, line
    elif words:
        subprocess.run(["sh", "-ec", line], check=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
