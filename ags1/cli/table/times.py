"""Times on the command line, in ISO 8601 or as ages such as 7d."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from ...errors import ArgumentError


class Moment(click.ParamType):  # type: ignore[type-arg]
    """A time in ISO 8601, or an age such as 7d: how long ago the time was."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        from ...iceberg.command_line import moment

        try:
            return moment(value, self.name)
        except ArgumentError as error:
            self.fail(f"{error.message}.", param, ctx)
