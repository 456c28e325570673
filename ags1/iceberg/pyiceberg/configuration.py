"""PyIceberg reads its configuration file ``.pyiceberg.yaml`` when ``pyiceberg.catalog`` is first
imported. If the file is broken, the YAML library's exception leaves that import: here it becomes an
error that names the file and the line."""

from __future__ import annotations

import importlib
import os

from ...errors import ArgumentError


def _fault() -> ArgumentError | None:
    """Import ``pyiceberg.catalog``; return what is wrong with the configuration."""
    try:
        importlib.import_module("pyiceberg.catalog")
    except ImportError:
        raise
    except Exception as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        what = getattr(error, "problem", None)
        if isinstance(error, UnicodeDecodeError):
            what = "it is not UTF-8"
        elif isinstance(error, OSError):
            what = error.strerror
        where = "" if line is None else f", line {line + 1}"
        return ArgumentError(
            f"PyIceberg's configuration file {file_path()}{where}: "
            f"{what or 'it is not a mapping of names to values'}"
        )
    return None


def file_path() -> str:
    """Return the path of the configuration file: PyIceberg takes the first that is there."""
    folders = (os.environ.get("PYICEBERG_HOME"), os.path.expanduser("~"), os.getcwd())
    paths = [os.path.join(folder, ".pyiceberg.yaml") for folder in folders if folder]
    return next(filter(os.path.isfile, paths), paths[-1])


# Raised here, because the cause has the text of the file, which may have credentials.
if (_found := _fault()) is not None:
    raise _found
