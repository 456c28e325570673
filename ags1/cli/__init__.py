"""The command line: ``ags1`` and ``python -m ags1``.

Imports point down this list, and ``make lint`` checks it:

- ``app``: the program, its exit codes and signals, and all commands;
- ``info``, ``keys``, ``spark``: the commands of these names;
- ``files``, ``table``: the commands on files and on tables, on which ``keys`` and ``spark`` build;
- ``kms``: the KMS of a run: its options, its clients, and the keychains over it;
- ``options``, ``report``: shared options; progress and results of many files;
- ``console``, ``exits``: standard input and output; exit codes and one-line messages.

``commands`` has a subpackage's commands; ``spark`` and ``table`` name their other modules of
commands. Commands import PyIceberg, Arrow, PySpark, fastavro and KMSs within their functions: help
has to be quick, and they are optional.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # typing's own takes a moment to import, before Ctrl-C is heard
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

__all__ = ["main"]


def main() -> None:
    """Run the command line on ``sys.argv`` and exit."""
    # A parent may have had Ctrl-C ignored (nohup).
    is_heard = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    # Before the commands are imported and after they have ended, there is nothing to clean up, and
    # Python would print a traceback of itself.
    if is_heard:
        signal.signal(signal.SIGINT, _interrupted)
    from ..host.descriptors import write_standard_output_whole
    from .app import app

    write_standard_output_whole()
    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    finally:
        if is_heard:
            signal.signal(signal.SIGINT, _interrupted)


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"ags1: interrupted\n")
    os._exit(128 + number)
