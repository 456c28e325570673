"""What the user sees while files are worked on: a progress bar, JSON lines, failures."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import standard
from .failures import Exit, describe, one_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# Shorter runs end before a bar would have been read.
_BAR_DELAY_SECONDS = 0.5
# A sidecar may hold names of any length. Those of the services' keys have up to 250 characters.
_MAX_NAME = 300
_MAX_CAUSE = 1000


class Report:
    """Collects the results of a run over several files.

    ``total_size`` is the work in bytes, None where it cannot be known. The bar is shown when
    standard error is a terminal and nobody asked for silence.
    """

    def __init__(self, *, as_json: bool, quiet: bool, total_size: int | None = None) -> None:
        self.exit_code = Exit.OK
        self._json = as_json
        self._quiet = quiet
        self._total_size = total_size
        self._file = ""
        self._finished_size = 0
        self._current_size = 0
        self._show_from = time.monotonic() + _BAR_DELAY_SECONDS
        self._wants_bar = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self._bar: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Report:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hide_bar()

    def begin(self, file: str) -> None:
        """Say which file is worked on from now on."""
        self._finished_size += self._current_size
        self._current_size = 0
        self._file = file

    def progress(self, done_size: int, total_size: int | None = None) -> None:
        """Take how much of the current file is done (bytes); called about ten times a second."""
        self._current_size = done_size
        if not self._wants_bar or time.monotonic() < self._show_from:
            return
        if self._bar is None:
            self._bar = _new_bar(self._total_size)
        bar, task = self._bar
        bar.update(
            task,
            description=one_line(os.path.basename(self._file)),
            completed=self._finished_size + done_size,
            refresh=True,
        )

    def succeeded(self, result: Mapping[str, Any], line: str | None = None) -> None:
        """Report a file that is done: as JSON, or as ``line`` where there is one."""
        if self._json:
            standard.print_line(json.dumps({**result, "ok": True}))
        elif line is not None and not self._quiet:
            self._hide_bar()
            standard.print_line(one_line(line))

    def failed(self, error: BaseException, file: str) -> None:
        """Report a failure on standard error, and as JSON; the first one is the exit code."""
        failure = describe(error, file)
        # The file's own name stays whole.
        about = f"{failure.file}: " if failure.file is not None else ""
        if failure.message.startswith(about):
            cause = shortened(failure.message.removeprefix(about), _MAX_CAUSE)
            failure = replace(failure, message=about + cause)
        if failure.file == standard.STDOUT:
            # Nothing more can be said there, whatever the file.
            raise error
        self.exit_code = self.exit_code or failure.exit_code
        self._hide_bar()
        standard.print_error(f"ags1: {one_line(failure.message)}")
        if self._json:
            details = {name: value for name, value in asdict(failure).items() if value is not None}
            standard.print_line(json.dumps({"file": file, "ok": False, "error": details}))

    def not_tried(self, files: Sequence[str]) -> None:
        """Report files that are left alone because the KMS, as the last failure told, cannot be
        used."""
        if files:
            self._hide_bar()
            number = "1 more file" if len(files) == 1 else f"{len(files)} more files"
            standard.print_error(f"ags1: {number} not tried: the KMS cannot be used")
        if self._json:
            for file in files:
                error = {
                    "exit_code": Exit.KEYS,
                    "message": f"{file}: not tried: the KMS cannot be used",
                    "kind": "NotTried",
                    "file": file,
                }
                standard.print_line(json.dumps({"file": file, "ok": False, "error": error}))

    def note(self, text: str) -> None:
        """Tell something that is no failure on standard error, unless silence was asked for."""
        if not self._quiet:
            self._hide_bar()
            standard.print_error(f"ags1: {one_line(text)}")

    def _hide_bar(self) -> None:
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None


def shortened(text: str, size: int = _MAX_NAME) -> str:
    """Return ``text`` in at most about ``size`` characters: the middle is what is left out."""
    if len(text) <= size:
        return text
    return f"{text[: size // 2]}[{len(text) - size:,} characters]{text[-(size // 2) :]}"


def _new_bar(total_size: int | None) -> tuple[Progress, TaskID]:
    # rich takes longer to import than many a file to encrypt.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.table import Column

    bar = Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(max_width=40)),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        # Drawn when progress is reported: a thread of its own would take the interpreter's lock
        # from the workers.
        auto_refresh=False,
        transient=True,
    )
    bar.start()
    return bar, bar.add_task("", total=total_size)
