"""``Patterns``: which of the files below a folder a user wants, by patterns as in ``.gitignore``.

A pattern without a slash is the name of a file or folder at any depth: ``*.tmp``. One with a slash
in it begins at the folder that was given: ``2026/*.csv``, ``/top``; a slash at its end is for
folders alone. ``*`` matches within a name and ``**`` over folders. No I/O."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any


class Patterns:
    """``include``: only files that match one of these, if there are any. ``exclude``: no files that
    match one of these, or that are in a folder which does; it wins. A path may be matched with or
    without ``suffix``. Raises ValueError for a pattern that means nothing, and ImportError without
    pathspec."""

    def __init__(
        self, include: Sequence[str] = (), exclude: Sequence[str] = (), *, suffix: str = ""
    ) -> None:
        self._suffix = suffix
        self._include = _spec(include)
        self._exclude = _spec(exclude)

    def __call__(self, relative_path: str, is_folder: bool) -> bool:
        """Return whether somebody wants a path, or may want what is below it."""
        if is_folder:
            return not _matches(self._exclude, [relative_path + "/"])
        if self._include is None and self._exclude is None:
            return True
        names = [relative_path]
        if self._suffix and relative_path.endswith(self._suffix):
            names.append(relative_path.removesuffix(self._suffix))
        if self._include is not None and not _matches(self._include, names):
            return False
        return not _matches(self._exclude, names)


def _matches(spec: Any, names: list[str]) -> bool:
    return spec is not None and any(map(spec.match_file, names))


def _spec(patterns: Sequence[str]) -> Any:
    if not patterns:
        return None
    for pattern in patterns:
        _checked(pattern)
    return _kind().from_lines(patterns)


def _checked(pattern: str) -> None:
    try:
        read = [one.include for one in _kind().from_lines([pattern]).patterns]
    except ValueError:
        read = []
    if read not in ([True], [False]):
        raise ValueError(
            f"the pattern {pattern!r} matches nothing: write it as in a .gitignore, such as "
            "'*.tmp', 'folder/' or '2026/**/*.csv'"
        )


@functools.cache
def _kind() -> Any:
    import pathspec  # optional

    return pathspec.GitIgnoreSpec
