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

import ags1

assert ags1.__file__ is not None
GUIDE = Path(ags1.__file__).parent / "spark" / "README.md"
TESTS = Path(__file__).parent.parent
SPARK_S = {
    "No module named 'ags1'",
    'Cannot run program "environment/bin/python"',
    "[PYTHON_VERSION_MISMATCH]",
    "[DATA_SOURCE_NOT_FOUND]",
}

pytestmark = pytest.mark.skipif(not GUIDE.exists(), reason="the guide is not beside the package")


def blocks(*languages: str) -> list[tuple[str, str]]:
    found = re.findall(r"^```(\w+)\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    return [(language, code) for language, code in found if language in languages]


def test_python_that_is_not_run_is_python() -> None:
    for _, code in blocks("py", "python"):
        ast.parse(code)


@pytest.mark.usefixtures("pyspark")
def test_names_that_the_guide_imports_exist() -> None:
    for _, code in blocks("py", "python"):
        lines = [line for line in code.splitlines() if re.match(r"(from|import) ags1", line)]
        exec(compile("\n".join(lines), "README.md", "exec"), {})


def test_messages_that_the_guide_explains_exist() -> None:
    text = GUIDE.read_text()
    table = text[text.index("| message |") :]
    messages = [
        m for m in re.findall(r"^\| `(.+?)` [|i(]", table, re.MULTILINE) if m not in SPARK_S
    ]
    assert len(messages) > 15
    modules = [path for path in GUIDE.parents[1].rglob("*.py*") if path.suffix in (".py", ".pyx")]
    source = "".join(path.read_text() for path in modules)
    # A long message is several strings.
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    for message in messages:
        for part in message.split("…"):
            assert part.strip(" '\"") in joined, message


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
