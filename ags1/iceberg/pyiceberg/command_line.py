"""PyIceberg's command line over catalogs that are not PyIceberg's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ...host.descriptors import STDERR, forget_output, write_standard_output_whole


def run_commands(load_catalog: Callable[..., Any], program: str) -> None:
    """Run PyIceberg's command line with the arguments of this process, and end the process.
    ``load_catalog`` makes its catalog, because PyIceberg 0.12 takes ``py-catalog-impl`` only from
    callers, and neither from its configuration file nor from the environment."""
    # Only those who run commands need click and rich.
    from pyiceberg.cli import console

    console.load_catalog = load_catalog  # type: ignore[attr-defined]
    write_standard_output_whole()
    try:
        try:
            console.run(prog_name=program)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:  # PyIceberg could not print
        forget_output(sys.stderr if error.filename == STDERR else None)
        sys.exit(f"{program}: {error.filename}: {error.strerror}")
