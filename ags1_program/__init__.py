"""The program ``ags1``. It is not in the package ``ags1``, because that takes a moment to import,
and Ctrl-C has to end the program with one line from the beginning."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line on ``sys.argv`` and exit."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    from ags1.cli import main as run

    run()


def _interrupted(number: int, frame: object) -> None:
    os.write(2, b"ags1: interrupted\n")
    os._exit(128 + number)
