"""The command line: ``ags1`` and ``python -m ags1``.

One module per role: ``app`` (the program: exit codes, signals), ``commands`` and ``key_commands``
(what can be typed), ``options`` (what several of them take), ``settings`` (which KMS is meant),
``masters`` (the KMS of a run), ``sources`` (which files are meant), ``running`` (one after the
other), ``sealing``, ``unsealing`` and ``rewrapping`` (one file's work), ``report`` (what the user
sees), ``failures`` (exit codes and one-line messages). rich, fastavro, libcrypto and the KMSs are
imported only by the commands that use them: help is quick.
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
    from .commands import app

    if python_s_own:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app()
