"""Prints ``docs/modules.md``: what each module of Python and each class of the jar is for, in the
text at its own beginning. ``python docs/modules.py > docs/modules.md``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
JAVA = "jvm/src/main/java/ags1/iceberg"
_TITLE = """# All modules

What each module says of itself in its first lines, up to its first drawing. `python
docs/modules.py` prints this page. The [map of the code](code.md) says which packages use which,
and where to start.
"""


def modules_page() -> str:
    """Return the page."""
    parts = [_TITLE]
    folders = sorted({path.parent for path in ROOT.glob("ags1/**/__init__.py")})
    for folder in [*folders, *sorted({path.parent for path in ROOT.glob(f"{JAVA}/**/*.java")})]:
        parts.append(f"\n## {folder.relative_to(ROOT)}\n\n")
        parts.extend(f"- `{path.name}`: {text}\n" for path, text in _sentences(folder))
    return "".join(parts)


def _sentences(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.iterdir()):
        if path.suffix in (".py", ".pyx"):
            found = re.match(r'(?:#[^\n]*\n)*r?"""(.*?)"""', path.read_text(), re.DOTALL)
        elif path.suffix == ".java":
            found = re.search(r"/\*\*(.*?)\*/", path.read_text(), re.DOTALL)
        else:
            continue
        if found is not None:
            yield path, _first_words(found[1])


def _first_words(text: str) -> str:
    text = re.sub(r"^ *\* ?", "", text, flags=re.MULTILINE)
    text = re.sub(r"\{@\w+\s+([^}]*)\}", r"``\1``", text)
    shown: list[str] = []
    for paragraph in re.split(r"\n\s*\n|<p>", text):
        if re.search(r"^ {2}|^>>>|^- ", paragraph.strip("\n"), re.MULTILINE):
            break
        shown += paragraph.split()
        if paragraph.rstrip().endswith("::"):
            break
    return " ".join(shown).replace("``", "`").replace("](", "] (")


if __name__ == "__main__":
    print(modules_page(), end="")
