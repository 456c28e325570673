"""How long modules and functions may be, and the tests' folders, which are as in ``ags1``."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest
from conftest import FIRST, RunPython

from ags1.iceberg import command_line, distributed

TESTS = Path(__file__).parent
ROOT = TESTS.parent
LINES_OF_A_MODULE = 700
LINES_OF_A_FUNCTION = 60
PARAMETERS = 8
# Their parameters are options of the user.
WITH_MANY_OPTIONS = {
    "cli/files/commands.py": {"encrypt"},
    "cli/spark/commands.py": {"encrypt"},
    "cli/table/commands.py": {"scan"},
    "cli/table/erasing.py": {"erase"},
    "cli/table/maintenance.py": {"expire"},
    "engine/bulk.py": {"decrypt_file", "encrypt_file"},
    "engine/stream.py": {"open"},
    "iceberg/operations/catalog_jobs.py": {"migrate"},
    "iceberg/operations/compact.py": {"rewrite_data_files"},
    "iceberg/operations/rekey.py": {"rekey"},
    "iceberg/read/scan.py": {"__init__"},
    "spark/jobs/__init__.py": {"decrypt_files", "encrypt_files", "verify_files"},
    "spark/tables/__init__.py": {"migrate_table", "rekey_table"},
}
NAMES_OF_A_DOOR = 20
# Tests of ags1 as a whole beside other implementations.
OTHER_FOLDERS = {"interop", "peers"}

MODULES = sorted((ROOT / "ags1").rglob("*.py"))


def test_no_module_is_too_long() -> None:
    for path in (*MODULES, *(ROOT / "ags1").rglob("*.pyx")):
        assert path.read_text().count("\n") <= LINES_OF_A_MODULE, path


def test_no_function_is_too_long_or_takes_too_much() -> None:
    for path in MODULES:
        many = WITH_MANY_OPTIONS.get(path.relative_to(ROOT / "ags1").as_posix(), set())
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            documented = (ast.get_docstring(node, clean=False) or "").count("\n") + 1
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1 - documented
            assert lines <= LINES_OF_A_FUNCTION, (path, node.name)
            taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if len([name for name in taken if name.arg not in ("self", "cls")]) > PARAMETERS:
                found.add(node.name)
        assert found == many, path


@pytest.mark.parametrize(("package", "door"), [("cli", command_line), ("spark", distributed)])
def test_the_door_to_tables_is_narrow(package: str, door: ModuleType) -> None:
    """The linter lets each package import one module of ags1.iceberg."""
    names: set[str] = set()
    for path in (ROOT / "ags1" / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and f"ags1.{node.module}" == door.__name__:
                names.update(name.name for name in node.names)
            elif isinstance(node, ast.ImportFrom) and "iceberg" in (node.module or "").split("."):
                pytest.fail(f"{path} imports {node.module}")
    assert len(names) > 15
    assert names == set(door.__all__)
    assert len(names) <= NAMES_OF_A_DOOR


def test_the_tests_folders_are_those_of_the_packages() -> None:
    for path in TESTS.rglob("test_*.py"):
        folder = path.parent.relative_to(TESTS)
        is_package = (ROOT / "ags1" / folder / "__init__.py").is_file()
        assert is_package or str(folder) in OTHER_FOLDERS, path


def test_the_files_that_come_first_are_there() -> None:
    assert all((TESTS / file).is_file() for file in FIRST)


def test_a_public_name_is_loaded_when_it_is_used(run_python: RunPython) -> None:
    run_python(
        """
import sys, ags1
assert not [name for name in sys.modules if name.startswith("ags1.")]
names = {name for name in dir(ags1) if not name.startswith("__")}
assert names == {*ags1.__all__, "errors", "hazmat", "keys", "kms", "layout"}
for name in names:
    assert getattr(ags1, name) is getattr(ags1, name)
assert names == {name for name in dir(ags1) if not name.startswith("__")}
assert not hasattr(ags1, "nothing")
from ags1 import *
assert open is ags1.open
"""
    )
