"""The limits that the code keeps to, and the tests' folders, which are those of ``ags1``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from conftest import FIRST

TESTS = Path(__file__).parent
ROOT = TESTS.parent
LINES_OF_A_MODULE = 700
LINES_OF_A_FUNCTION = 60
PARAMETERS = 8
# Where a function has more: in its own docstring, in its class's, or in that of a package above.
REASON = re.compile(r"There\s+are\s+[\w\s]+?(?:parameters|arguments)|\ba\s+parameter\b")
# Tests of the modules in ags1/ itself, and of ags1 as a whole beside other implementations.
OTHER_FOLDERS = {"format", "interop", "peers"}

MODULES = sorted((ROOT / "ags1").rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST, docs: str) -> Iterator[tuple[Function, str]]:
    """Yield each function, and the docstrings of the function and of what it stands in."""
    for node in ast.iter_child_nodes(tree):
        mine = docs
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            mine += f"\n{ast.get_docstring(node)}"
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node, mine
        yield from functions(node, mine)


def lines_of_code(function: Function, lines: list[str]) -> int:
    """Count lines that are not blank, a comment or the docstring."""
    of_docstring: set[int] = set()
    if ast.get_docstring(function) is not None:
        of_docstring = set(range(function.body[0].lineno, (function.body[0].end_lineno or 0) + 1))
    return sum(
        number not in of_docstring and lines[number - 1].strip()[:1] not in ("", "#")
        for number in range(function.lineno, (function.end_lineno or 0) + 1)
    )


def parameters(function: Function) -> int:
    """Count them without ``self`` and ``cls``."""
    all_of_them = function.args
    named = [*all_of_them.posonlyargs, *all_of_them.args, *all_of_them.kwonlyargs]
    return sum(each.arg not in ("self", "cls") for each in named)


def is_overload(function: Function) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in function.decorator_list)


def test_no_module_is_too_long() -> None:
    for path in (*MODULES, *(ROOT / "ags1").rglob("*.pyx")):
        assert path.read_text().count("\n") <= LINES_OF_A_MODULE, path


def test_a_long_function_or_one_of_many_parameters_says_why() -> None:
    of_packages = {
        path.parent: ast.get_docstring(ast.parse(path.read_text())) or ""
        for path in MODULES
        if path.name == "__init__.py"
    }
    found, unexplained = 0, []
    for path in MODULES:
        lines = path.read_text().splitlines()
        above = [of_packages.get(folder, "") for folder in path.parents if folder != ROOT / "ags1"]
        for function, docs in functions(ast.parse("\n".join(lines)), "\n".join(above)):
            found += 1
            is_large = parameters(function) > PARAMETERS
            is_large |= lines_of_code(function, lines) > LINES_OF_A_FUNCTION
            if is_large and not REASON.search(docs) and not is_overload(function):
                unexplained.append(f"{path}:{function.lineno}: {function.name}")
    assert not unexplained
    assert found > 3000


def test_the_tests_folders_are_those_of_the_packages() -> None:
    for path in TESTS.rglob("test_*.py"):
        folder = path.parent.relative_to(TESTS)
        is_package = (ROOT / "ags1" / folder / "__init__.py").is_file()
        assert is_package or str(folder) in OTHER_FOLDERS, path


def test_the_files_that_come_first_are_there() -> None:
    assert all((TESTS / file).is_file() for file in FIRST)
