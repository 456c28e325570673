"""The command line: ``ags1`` and ``python -m ags1``.

Imports point down this list, and ``make lint`` checks it:

- ``app``: the program, its exit codes and signals, and all commands;
- ``info``, ``keys``, ``spark``: the commands of these names;
- ``files``, ``table``: the commands on files and on tables, on which ``keys`` and ``spark`` build;
- ``kms``: the KMS of a run: its options, its clients, and the keychains over it;
- ``options``, ``report``: options that several rooms share; progress and results of many files;
- ``console``, ``exits``: standard input and output; exit codes and one-line messages.

In each room, ``commands`` is what can be typed. Commands import PyIceberg, Arrow, PySpark, fastavro
and KMSs within their functions: help has to be quick, and they are optional. A command has a
parameter for each of its options, so that some have more than eight.
"""

from __future__ import annotations

import signal

__all__ = ["main"]


def main() -> None:
    """Run the command line on ``sys.argv`` and exit."""
    # Until the commands are imported there is nothing to clean up. Ctrl-C just ends the process;
    # Python's own handler would print a traceback of whatever was being imported.
    python_s_own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if python_s_own:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .app import app

    if python_s_own:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app()
