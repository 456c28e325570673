"""The command line: ``ags1`` and ``python -m ags1``.

One module per role: ``app`` (the program: exit codes, signals), ``commands`` (what can be typed),
``sources`` (which files are meant), ``keychain`` (keys and sidecars), ``sealing`` and ``unsealing``
(one file's work), ``report`` (what the user sees), ``failures`` (exit codes and one-line messages).
rich, fastavro and libcrypto are imported only by the commands that use them: help is quick.
"""

from __future__ import annotations

from .commands import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line on ``sys.argv`` and exit."""
    app()
