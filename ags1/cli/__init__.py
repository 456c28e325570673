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

import signal

from ..descriptors import write_standard_output_whole

__all__ = ["main"]


def main() -> None:
    """Run the command line on ``sys.argv`` and exit."""
    # Until the commands are imported there is nothing to clean up. Ctrl-C just ends the process;
    # Python's own handler would print a traceback of whatever was being imported.
    has_default_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if has_default_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .app import app

    if has_default_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    write_standard_output_whole()
    app()
