"""Prints ``docs/modules.md``: what each module of Python and each class of the jar is for, in the
text at its own beginning, and the names of what is in it. ``python docs/modules.py >
docs/modules.md``."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent
JAVA = "jvm/src/main/java/ags1/iceberg"
_TITLE = """# All modules

What each module says of itself in its first lines, and then the names of its functions, classes and
constants. `python docs/modules.py` prints this page. The [map of the
code](code.md) says which packages use which, and where to start.
"""
_NAMES = {
    ".py": r"^(?:async )?(?:def|class) (\w+)|^([A-Z_]{4,})(?:: [^=\n]+)? =",
    ".pyx": r"^(?:cdef |cpdef )?(?:class|def) (\w+)|^cdef [\w ]*?\**(\w+)\(|^([A-Z_]{4,}) =",
    ".java": r"^  (?! )[\w<>\[\], ?.@]*?\b(\w+)\(.*\{|^  [\w<>, ]*final [\w<>]+ ([A-Z_]{4,}) =",
}
_TEXT = {".java": r"/\*\*(.*?)\*/"}


def modules_page() -> str:
    """Return the page."""
    parts = [_TITLE]
    folders = sorted({path.parent for path in ROOT.glob("ags1/**/__init__.py")})
    for folder in [*folders, *sorted({path.parent for path in ROOT.glob(f"{JAVA}/**/*.java")})]:
        parts.append(f"\n## {folder.relative_to(ROOT)}\n\n")
        for path in sorted(folder.iterdir()):
            if path.suffix in _NAMES:
                parts.append(_about(path))
    return "".join(parts)


def _about(path: Path) -> str:
    code = path.read_text()
    found = re.search(_TEXT.get(path.suffix, r'\A(?:#[^\n]*\n)*r?"""(.*?)"""'), code, re.DOTALL)
    if found is None:
        return ""
    matches = re.finditer(_NAMES[path.suffix], code[found.end() :], re.MULTILINE)
    names = dict.fromkeys(next(filter(None, match.groups())).strip("_") for match in matches)
    names.pop(path.stem, None)
    listed = f" *{', '.join(names)}*" if names else ""
    text = found[1] if path.suffix != ".java" else _without_tags(found[1])
    return f"- `{path.name}`: {_words(text)}{listed}\n"


def _without_tags(javadoc: str) -> str:
    text = re.sub(r"^ *\* ?", "", javadoc, flags=re.MULTILINE).replace("<p>", "")
    return re.sub(r"\{@\w+\s+([^}]*)\}", r"``\1``", text)


def _words(text: str) -> str:
    """Return the text as one paragraph, with its drawings as blocks of code."""
    shown: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        lines = block.strip("\n").rstrip()
        if re.match(r" {2}|>>>|<pre>", lines):
            drawn = textwrap.dedent(re.sub(r"</?pre>\n?", "", lines))
            shown.append(f"\n\n{textwrap.indent(drawn, ' ' * 8)}\n\n   ")
        else:
            text = re.sub(r"\s*::$", "", lines) + ":" * bool(re.search(r"\S::$", lines))
            text = text.replace("``", "`").replace("](", "] (")
            shown += re.sub(r"^- ", "", text, flags=re.MULTILINE).split()
    words = re.sub(r" *\n\n *\Z| +(?=\n)", "", " ".join(shown))
    return re.sub(r"\n{3,}", "\n\n", words)


if __name__ == "__main__":
    print(modules_page(), end="")
