"""Runs tests on another kind of Python: ``run.py freethreaded|aarch64 [pytest's arguments]``.

The tree is copied to ``build/KIND``, and compiled there with the translation to C that this
checkout has. Without arguments, the tests of the format run, and those of the engine on arm64.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
from pathlib import Path

import interpreters

ROOT = Path(__file__).parents[2]
COPIED = ["ags1", "bench", "docs", "include", "tests"]
COPIED_FILES = ["setup.py", "build_openssl.py", "pyproject.toml", "README.md"]
PACKAGES = [
    *("setuptools>=77", "Cython>=3.3,<3.4", "pytest>=9", "pytest-xdist", "pytest-run-parallel"),
    *("hypothesis", "cryptography", "cryptography-vectors", "numpy", "typing-extensions"),
    *("pyarrow", "jsonschema", "fsspec", "fastavro", "click", "urllib3"),
]
# These need PyIceberg, or the servers of key management services.
LEFT_OUT = ["test_corpus.py", "test_corpus_tables.py", "test_secrets.py"]


def _copy(source: str, target: str) -> None:
    """Copy a file that has changed. It is then newer than Cython, which would translate again."""
    if not os.path.exists(target) or not filecmp.cmp(source, target, shallow=False):
        shutil.copyfile(source, target)


def main(kind: str, *arguments: str) -> int:
    interpreter = interpreters.KINDS[kind]()
    folder = ROOT / "build" / kind
    names = [name for name in PACKAGES if name not in interpreter.without]
    packages = folder / "packages"
    listed = packages / "listed"
    if not listed.exists() or listed.read_text() != str(names):
        pip = [*(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")]
        fresh = folder / "packages.new"
        shutil.rmtree(fresh, ignore_errors=True)
        wanted = ["--only-binary", ":all:", "--target", str(fresh), *interpreter.tags, *names]
        subprocess.run([*pip, *wanted], check=True)
        (fresh / "listed").write_text(str(names))
        for old in (packages, folder / "build"):
            shutil.rmtree(old, ignore_errors=True)
        fresh.rename(packages)
    for name in COPIED:
        shutil.rmtree(folder / name, ignore_errors=True)
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored, symlinks=True)
    for name in COPIED_FILES:
        shutil.copy(ROOT / name, folder)
    for translated in ROOT.glob("build/cython-*-release"):
        target = folder / "build" / translated.name
        shutil.copytree(translated, target, copy_function=_copy, dirs_exist_ok=True)
    path = [str(folder), str(packages)]
    if interpreter.without:
        path.append(str(folder / "tests" / "platforms" / "stand_ins"))
    environment = os.environ | interpreter.variables
    environment |= {"AGS1_OPENSSL": "vendored", "PYTHONPATH": os.pathsep.join(path)}

    def python(*command: str) -> int:
        whole = [str(interpreter.python), *command]
        return subprocess.run(whole, cwd=folder, env=environment).returncode

    failed = python("-W", "ignore", "setup.py", "--quiet", "build_ext", "--inplace")
    if failed:
        return failed
    left_out = [f"--ignore=tests/engine/{name}" for name in LEFT_OUT]
    tests = [*arguments] or [*interpreter.tests, *left_out, "-m", "local and not slow"]
    once = python("-m", "pytest", "-q", *interpreter.pytest, *tests)
    if not interpreter.parallel:
        return once
    # Tests that change the process, or a fixture's files, are run in one thread by the plugin.
    at_once = ["--parallel-threads=4", "-p", "no:xdist", "-k", interpreter.parallel]
    return python("-m", "pytest", "-q", *at_once, *tests) or once


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
