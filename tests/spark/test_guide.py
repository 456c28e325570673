"""The guide says what is so: its commands and programs run as they stand, in their order.

Run are the blocks in ``sh`` and ``python``. Those in ``shell`` and ``py`` need a cluster, a cloud
or a metastore; ``test_shipping``, ``test_side_by_side`` and the jobs' own tests do what they say.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
PROJECT = TESTS.parent
PAGES = PROJECT / "docs" / "spark"
# In the order in which a reader follows them.
GUIDE = [
    PROJECT / "docs" / "spark.md",
    *(PAGES / f"{name}.md" for name in ("jobs", "ledger", "files", "tables", "cluster")),
]

pytestmark = pytest.mark.skipif(not PAGES.exists(), reason="the guide is not beside the package")


def blocks(*languages: str) -> list[tuple[str, str]]:
    text = "\n".join(page.read_text() for page in GUIDE)
    found = re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(language, code) for language, code in found if language in languages]


def test_python_that_is_not_run_is_python() -> None:
    for _, code in blocks("py", "python"):
        ast.parse(code)


@pytest.mark.usefixtures("pyspark")
def test_names_that_the_guide_imports_exist() -> None:
    for _, code in blocks("py", "python"):
        lines = [line for line in code.splitlines() if re.match(r"(from|import) ags1", line)]
        exec(compile("\n".join(lines), "spark.md", "exec"), {})


def test_the_guide_has_all_pages() -> None:
    assert set(GUIDE) >= set(PAGES.glob("*.md"))


@pytest.mark.spark
def test_the_guide_runs(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        pytest.skip("java is not on this machine")
    found = blocks("sh", "python")
    run = [(language, code.replace("/data", str(tmp_path))) for language, code in found]
    assert len(run) > 5
    (tmp_path / "blocks.json").write_text(json.dumps(run))
    home = {name: value for name, value in os.environ.items() if not name.startswith("AGS1_")}
    home |= {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / ".config"),
        "XDG_DATA_HOME": str(tmp_path / ".local"),
        "PYICEBERG_HOME": str(tmp_path),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), os.environ.get("PYTHONPATH", "")]),
    }

    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("guide_job.py")), "blocks.json"],
        cwd=tmp_path,
        env=home,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-4000:]
