"""The command line, and functions, in processes of their own that are forks of this one. To start
Python and to import ags1 anew takes a fifth of a second, which most tests of processes do not
need."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import logging
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TextIO

import ags1.cli
import ags1.cli.app


def popen(
    arguments: list[str],
    *,
    env: Mapping[str, str],
    preexec_fn: Callable[[], object] = lambda: None,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Do as ``subprocess.Popen([sys.executable, "-m", "ags1", *arguments], ...)``."""

    def run() -> NoReturn:
        try:
            preexec_fn()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
            os._exit(1)
        _run(arguments, env)

    # Python's own handling of signals, which a new Python would set up again.
    return subprocess.Popen([sys.executable], preexec_fn=run, restore_signals=False, **options)


def at_once(*calls: Callable[[], object], timeout: int = 60) -> list[int]:
    """Call each in a forked child of its own, all at the same time. Return how each has ended, as
    ``Popen.returncode``: 1 after an exception."""
    waiting, starting = os.pipe()
    children = []
    for call in calls:
        if not (child := os.fork()):
            os.close(starting)
            _do(call, waiting, timeout)
        children.append(child)
    os.close(starting)
    os.close(waiting)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _do(call: Callable[[], object], waiting: int, timeout: int) -> NoReturn:
    code = 1
    try:
        os.read(waiting, 1)  # until the parent has made the last child
        signal.alarm(timeout)
        call()
        code = 0
    except KeyboardInterrupt:  # as a Python ends
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)


def _run(arguments: list[str], environment: Mapping[str, str]) -> NoReturn:
    code = 1
    try:
        # With these ends the descriptor by which the parent waits for a new program.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        _forget_the_tests()
        os.environ.clear()
        os.environ.update(environment)
        sys.stdin = sys.__stdin__ = _stream(0, "r", "strict")
        sys.stdout = sys.__stdout__ = _stream(1, "w", "strict")
        sys.stderr = sys.__stderr__ = _stream(2, "w", "backslashreplace")
        sys.argv = ["ags1", *arguments]
        code = _exit_code()
        atexit._run_exitfuncs()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except BaseException:
        code = 120  # as Python's, when its last flush fails
        traceback.print_exc()
    finally:
        os._exit(code)


def _exit_code() -> int:
    try:
        ags1.cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _forget_the_tests() -> None:
    """What pytest keeps for itself would not be seen: log records and warnings."""
    gc.freeze()
    atexit._clear()
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    warnings.resetwarnings()
    for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", kind)
    warnings.showwarning = _show_warning


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


def _stream(descriptor: int, mode: str, errors: str) -> Any:
    """Return what Python makes of a standard descriptor when it starts."""
    try:
        os.fstat(descriptor)
    except OSError:  # it is closed
        return None
    at_once = mode == "w" and bool(os.environ.get("PYTHONUNBUFFERED"))
    # Never closed: it is standard input or output.
    binary = open(  # noqa: SIM115
        descriptor, f"{mode}b", buffering=0 if at_once else -1, closefd=False
    )
    return io.TextIOWrapper(
        binary,  # type: ignore[arg-type]
        "utf-8",
        errors,
        line_buffering=descriptor == 2 or os.isatty(descriptor),
        write_through=at_once,
    )
