"""What the user sees while files are worked on: progress, results and failures."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .console import STDOUT, Output, counted, print_error, print_json, size, write_error
from .exits import Exit, Failure, describe, one_line

# Shorter runs end before the line would have been read.
_LINE_DELAY_SECONDS = 0.5
_LINE_SECONDS = 0.1
_MAX_LINE_NAME = 40
# A sidecar may hold names of any length. Those of the services' keys have up to 250 characters.
_MAX_NAME = 300
_MAX_CAUSE = 1000


class Report:
    """Collects the results of a run over several files; ``done`` and ``failures`` count them.
    ``total_size`` is the work in bytes, or None if it is not known. If standard error is a
    terminal, a line with the progress is printed there, unless ``--quiet`` is given. ``once``: with
    ``--json``, a failure is printed only as JSON."""

    def __init__(self, out: Output, total_size: int | None = None, *, once: bool = False) -> None:
        self._as_text = not (once and out.as_json)
        self.exit_code = Exit.OK
        self.done = 0
        self.failures = 0
        self._out = out
        self._total_size = total_size
        self._file = ""
        self._finished_size = 0
        self._current_size = 0
        self._begun = time.monotonic()
        self._show_from = self._begun + _LINE_DELAY_SECONDS
        self._wants_line = not out.quiet and sys.stderr is not None and sys.stderr.isatty()
        self._has_line = False

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self._hide_line()

    def begin(self, file: str) -> None:
        """Say which file is worked on from now on."""
        self._finished_size += self._current_size
        self._current_size = 0
        self._file = file

    def progress(self, done_size: int, _file_size: int | None = None) -> None:
        """Take how much of the current file is done (bytes). The library also passes the file's
        size; the line shows that of all files."""
        self._current_size = done_size
        if not self._wants_line or (now := time.monotonic()) < self._show_from:
            return
        self._show_from = now + _LINE_SECONDS
        done, total = self._finished_size + done_size, self._total_size
        rate = done / max(now - self._begun, 1e-9)
        text = f"{one_line(os.path.basename(self._file))[:_MAX_LINE_NAME]}  {size(done)}"
        if total is not None:
            text += f" of {size(total)}"
        text += f", {size(rate)}/s"
        if total is not None and rate:
            text += f", {max(0, total - done) / rate:.0f} s left"
        # Without wrapping: what is too wide for the terminal is cut.
        write_error(f"\r\033[K\033[?7l{text}\033[?7h")
        self._has_line = True

    def succeeded(self, result: Mapping[str, Any], line: str | None = None) -> None:
        """Report a file that is done: as JSON, or as ``line`` if there is one."""
        if not result.get("skipped"):
            self.done += 1
        if line is not None:
            self._hide_line()
        self._out.result(result, line)

    def failed(self, error: BaseException, file: str, kind: str | None = None) -> None:
        """Report a failure on standard error, and as JSON; the first one is the exit code. ``kind``
        is what to call it, if that is not the name of the error's class."""
        self.failures += 1
        failure = describe(error, file)
        failure = failure._replace(kind=kind or failure.kind)
        # The file's own name stays whole.
        about = f"{failure.file}: " if failure.file is not None else ""
        if failure.message.startswith(about):
            cause = shortened(failure.message.removeprefix(about), _MAX_CAUSE)
            failure = failure._replace(message=about + cause)
        if failure.file == STDOUT:
            # Standard output cannot be written to, so every other file would fail too.
            raise error
        self.exit_code = self.exit_code or failure.exit_code
        self._hide_line()
        if self._as_text:
            print_error(failure.message)
        self._print_json(file, failure)

    def not_tried(self, files: Sequence[str]) -> None:
        """Report files that are not tried, because the last failure was that the KMS cannot be
        used."""
        why = "not tried, because the KMS cannot be used"
        if files:
            self._hide_line()
            print_error(f"{counted(len(files), 'more file')} {why}")
        for file in files:
            self._print_json(file, Failure(Exit.KEYS, f"{file}: {why}", "NotTried", file))

    def note(self, text: str) -> None:
        """Write a note, which is not a failure, to standard error, unless ``--quiet`` is given."""
        if not self._out.quiet:
            self._hide_line()
            print_error(text)

    def _print_json(self, file: str, failure: Failure) -> None:
        if self._out.as_json:
            print_json({"file": file, "ok": False, "error": describe_failure(failure)})

    def _hide_line(self) -> None:
        if self._has_line:
            write_error("\r\033[K")
            self._has_line = False


@contextlib.contextmanager
def progress_line(name: str, out: Output) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a function that shows the progress of work on ``name``. It takes the bytes that are
    done and, as they are known once the work has begun, those of all."""
    with contextlib.ExitStack() as stack:
        report: Report | None = None

        def progress(done_size: int, total_size: int | None) -> None:
            nonlocal report
            if report is None:
                report = stack.enter_context(Report(out, total_size))
                report.begin(name)
            report.progress(done_size)

        yield progress


def describe_failure(failure: Failure) -> dict[str, Any]:
    """Return a failure as it is in JSON."""
    return {name: value for name, value in failure._asdict().items() if value is not None}


def shortened(text: str, size: int = _MAX_NAME) -> str:
    """Return ``text`` in at most about ``size`` characters. If it is longer, its middle is cut."""
    if len(text) <= size:
        return text
    return f"{text[: size // 2]}[{len(text) - size:,} characters]{text[-(size // 2) :]}"
