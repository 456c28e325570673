"""The program around the commands: its own exit codes, signals, and a quiet end of a pipe."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

import click

from . import standard
from .failures import (
    EXPECTED,
    DeclinedError,
    Exit,
    ReaderGoneError,
    Terminated,
    describe,
    one_line,
)


class App(click.Group):
    """A click group whose failures are one line and one of our exit codes."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run the command line and exit."""
        standard.occupy_descriptors()
        with _termination_as_interrupt():
            code = self._run(args, prog_name or "ags1", complete_var, extra)
        raise SystemExit(int(code))

    def _run(
        self,
        args: Sequence[str] | None,
        prog_name: str,
        complete_var: str | None,
        extra: dict[str, Any],
    ) -> int:
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else prog_name
            standard.print_error(
                f"{command}: {one_line(error.format_message())} (see: {command} --help)"
            )
            return Exit.USAGE
        except DeclinedError:
            standard.print_error(f"{prog_name}: nothing was changed")
            return Exit.DECLINED
        except click.Abort as error:  # at a prompt, which hides why
            if isinstance(error.__context__, Terminated):
                return Exit.TERMINATED
            standard.print_error(f"{prog_name}: interrupted")
            return Exit.INTERRUPTED
        except OSError as error:
            # click's own printing of help failed.
            standard.forget_output()
            standard.print_error(f"ags1: {one_line(describe(error, standard.STDOUT).message)}")
            return Exit.IO
        return int(code)

    def invoke(self, ctx: click.Context) -> int:
        """Run a command; turn what it raises into an exit code.

        Here rather than in ``main``, where click has its own ideas about EOFError (which a
        TruncatedError is), KeyboardInterrupt and EPIPE.
        """
        try:
            return int(super().invoke(ctx) or Exit.OK)
        except (click.UsageError, click.Abort, click.exceptions.Exit):
            raise
        except ReaderGoneError:
            standard.forget_output()
            return Exit.READER_GONE
        except Terminated:
            return Exit.TERMINATED
        except KeyboardInterrupt:
            standard.print_error("ags1: interrupted")
            return Exit.INTERRUPTED
        except EXPECTED as error:
            failure = describe(error)
            if failure.file == standard.STDOUT:
                standard.forget_output()
            standard.print_error(f"ags1: {one_line(failure.message)}")
            return failure.exit_code
        except Exception as error:
            if os.environ.get("AGS1_DEBUG"):
                traceback.print_exc()
            standard.print_error(
                f"ags1: internal error: {type(error).__name__}: {one_line(str(error))} "
                "(a mistake in ags1; AGS1_DEBUG=1 shows where)"
            )
            return Exit.INTERNAL


@contextlib.contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Have SIGTERM and SIGHUP clean up as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    # A signal that our parent had ignored (nohup) stays ignored.
    before = {
        number: signal.signal(number, terminate)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
