"""What MkDocs needs from us to make the site of the files as they stand in a checkout.

Some pages are outside ``docs``, the tutorials are programs, and the manual of the commands is made
from click. A link names a file of the checkout, so that it also works where the repository is
shown. A drawing is put into its page, so that it has the colours of the page.
"""

from __future__ import annotations

import logging
import posixpath
import re
import textwrap
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

import click
from markdown import Extension, Markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from ags1.cli.app import app

ROOT = Path(__file__).parent.parent
# Each page from outside ``docs``, and its name in the site.
OUTSIDE = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "bench/README.md": "benchmarks.md",
}
RESULTS = ("bench/results", "results")
EXAMPLES = ("docs/examples", "tutorials")
# The pages of the manual, and the group of commands that each has; "" for those in no group.
COMMANDS = {
    "reference/commands.md": "",
    "reference/commands/key.md": "key",
    "reference/commands/table.md": "table",
    "reference/commands/spark.md": "spark",
}
FRONT = "index.md"
# How much a page counts in the search: messages of errors are explained on one page, and the list
# of changes has the words of all others.
BOOST = {"troubleshooting.md": 8, "faq.md": 2, "changelog.md": 0.2}

_LINK = re.compile(
    r"(?P<fence>^ *```.*?^ *```)"
    r"|(?P<image>!?)\[(?P<text>[^][]*)\]\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)",
    re.DOTALL | re.MULTILINE,
)
_FETCHED = re.compile(r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^>]*>")
_log = logging.getLogger("mkdocs.hooks.ags1")


class TwoSpaces(Extension):
    """Nested lists are indented by two spaces, as everywhere else."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.tab_length = 2
        md.build_parser()  # the processors of blocks have read the length already


def on_config(config: MkDocsConfig) -> None:
    config.markdown_extensions.insert(0, TwoSpaces())  # type: ignore[arg-type]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages from outside, the results of the benchmarks, and the tutorials."""
    for path, name in _from_outside().items():
        if path.endswith(".py"):
            page = as_page((ROOT / path).read_text("utf-8"))
            files.append(File.generated(config, name, content=page))
        else:
            files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links between files links between pages."""
    names = _from_outside()
    paths = {name: path for path, name in names.items()}
    here = page.file.src_uri
    source = paths.get(here, f"docs/{here}")
    if here in BOOST:
        page.meta["search"] = {"boost": BOOST[here]}
    if here == FRONT:
        page.meta["hide"] = ["navigation"]
    linked = _LINK.sub(partial(_linked, names, source, here), markdown)
    if here not in COMMANDS:
        return linked
    # The first page has what is on no other.
    others = {name for name in COMMANDS.values() if name}
    group = COMMANDS[here]
    top = click.Context(app, None, "ags1")
    if not group:
        return linked + "\n".join(manual(app, None, "ags1", others))
    return linked + "\n".join(manual(app.commands[group], top, group, level=2))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> None:
    """Warn of a page that would have a browser fetch something from elsewhere."""
    for fetched in _FETCHED.findall(output):
        if 'rel="canonical"' not in fetched:
            _log.warning("%s fetches from another server: %s", page.file.src_uri, fetched)


def as_page(program: str) -> str:
    """Return a program in jupytext's percent format as Markdown."""
    _, *cells = re.split(r"^# %%(.*)\n", program, flags=re.MULTILINE)
    parts = []
    for kind, cell in zip(cells[::2], cells[1::2], strict=True):
        if "[markdown]" in kind:
            parts.append(re.sub(r"^# ?", "", cell.strip(), flags=re.MULTILINE))
        else:
            parts.append(f"```python\n{cell.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def manual(
    command: click.Command,
    parent: click.Context | None,
    name: str,
    omitted: Collection[str] = (),
    level: int = 2,
) -> Iterator[str]:
    """Yield the Markdown about a command and those below it, but for those that are ``omitted``.
    Its help is plain text, not Markdown. The exit statuses are the same for all commands, and left
    out."""
    context = click.Context(command, parent, name)
    usage, options = click.HelpFormatter(width=88), click.HelpFormatter(width=88)
    usage.write_usage(context.command_path, " ".join(command.collect_usage_pieces(context)), "")
    command.format_options(context, options)
    yield f"\n{'#' * level} {context.command_path}\n"
    yield _plain(usage.getvalue())
    for paragraph in textwrap.dedent(command.help or "").split("\n\n"):
        yield re.sub(r"([\\`*_<>[\]|#])", r"\\\1", " ".join(paragraph.split())) + "\n"
    yield _plain(options.getvalue())
    for part in (command.epilog or "").split("\b\n"):
        if part.strip() and not part.startswith("Exit status"):
            yield _plain(part)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            if below not in omitted:
                yield from manual(found, context, below, level=3)


def _plain(text: str) -> str:
    return f"```text\n{text.strip()}\n```\n"


def _from_outside() -> dict[str, str]:
    """Return the name in the site of each file that is not simply a file of ``docs``."""
    names = dict(OUTSIDE)
    for (folder, place), patterns in ((RESULTS, ("*.md", "*.png")), (EXAMPLES, ("*.py",))):
        for path in sorted(path for pattern in patterns for path in (ROOT / folder).glob(pattern)):
            suffix = ".md" if path.suffix == ".py" else path.suffix
            names[f"{folder}/{path.name}"] = f"{place}/{path.stem}{suffix}"
    return names


def _linked(names: dict[str, str], source: str, here: str, found: re.Match[str]) -> str:
    """Return a link of the file ``source`` as a link of the page ``here``. A link to a file that is
    not in the site becomes its text."""
    target = found["target"]
    if found["fence"] or "://" in target or not target:
        return found[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if found["image"] and path.endswith(".svg"):
        return _drawing(path, found["text"])
    name = names.get(path)
    if name is None and path.startswith("docs/"):
        name = path.removeprefix("docs/")
    if name is None:
        return found["text"]
    target = posixpath.relpath(name, posixpath.dirname(here) or ".")
    return f"{found['image']}[{found['text']}]({target}{found['anchor'] or ''})"


def _drawing(path: str, text: str) -> str:
    svg = (ROOT / path).read_text("utf-8").strip()
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{text}" ', 1)
    return f'<div class="drawing">{svg}</div>'
