"""A program for ``test_shipping``: ags1 on executors that have it from an archive alone.

``spark-submit … shipping_job.py FOLDER KEYRING``: FOLDER/in has text to encrypt. Prints one JSON
document: what each executor has imported from where, and what became of the jobs, in the last of
which an executor is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkFiles
from pyspark.sql import SparkSession

from ags1.files.keys import KmsConfig
from ags1.files.plan import cutting
from ags1.spark import datasource, jobs

EXECUTORS = 2


def main(folder: Path, keyring: str) -> dict[str, Any]:
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    datasource.register(spark)
    said: dict[str, Any] = {"driver": sys.modules["ags1"].__file__, "executors": executors(spark)}
    kms = KmsConfig({"encryption.kms-type": "local", "kms.local.keyring": keyring})
    ledger = folder / "ledger"
    given: dict[str, Any] = {"ledger": ledger, "kms": kms, "durable": False}

    done = jobs.encrypt_files(spark, folder / "in", folder / "sealed", key_id="default", **given)
    said["encrypted"] = [done.done, done.failed]
    rows = spark.read.format("ags1").option("inner", "text").option("keyring", keyring)
    said["rows"] = rows.option("ledger", str(ledger)).load(str(folder / "sealed")).count()

    cutting.MIN_TASK_COST = 1 << 20  # so that there is still work to do when the executor dies

    def kill_one() -> None:
        target = folder / "back"
        while not target.exists() or not any(target.iterdir()):
            time.sleep(0.001)
        os.kill(said["executors"][0]["jvm"], signal.SIGKILL)
        said["files at the kill"] = len(list(target.glob("*.txt")))

    threading.Thread(target=kill_one, daemon=True).start()
    back = jobs.decrypt_files(spark, folder / "sealed", folder / "back", **given)
    said["decrypted"] = [back.done, back.failed]
    spark.stop()
    return said


def executors(spark: Any) -> list[dict[str, Any]]:
    """Return what each executor says of itself, once all are there."""
    found: dict[str, dict[str, Any]] = {}
    until = time.monotonic() + 120
    while len(found) < EXECUTORS and time.monotonic() < until:
        tasks = spark.sparkContext.parallelize(range(2 * EXECUTORS), 2 * EXECUTORS)
        for one in tasks.mapPartitions(this_executor).collect():
            found[one["folder"]] = one
    return list(found.values())


def this_executor(_: Iterable[int]) -> Iterator[dict[str, Any]]:
    import pyarrow

    import ags1
    from ags1.engine import _gcm

    time.sleep(0.2)  # so that no executor takes all tasks
    alone = [os.path.realpath(sys.executable), "-c", "import ags1"]
    daemon_s = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    yield {
        "folder": os.getcwd(),
        "modules": [ags1.__file__, _gcm.__file__, pyarrow.__file__],
        "unpacked": SparkFiles.getRootDirectory(),
        "without the archive": subprocess.run(alone, capture_output=True, check=False).returncode,
        "jvm": int(daemon_s[1]),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
