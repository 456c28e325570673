"""Times on the command line, in ISO 8601 or as ages such as 7d."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import click

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_MAX_DIGITS = 9


class Moment(click.ParamType):  # type: ignore[type-arg]
    """A time in ISO 8601, or an age such as 7d: how long ago the time was."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        match = re.fullmatch(rf"(\d{{1,{_MAX_DIGITS}}})([smhdw])", value)
        try:
            if match is not None:
                ago = timedelta(**{_UNITS[match[2]]: int(match[1])})
                return datetime.now(timezone.utc) - ago
            # Python before 3.11 does not understand Z.
            moment = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", value))
            # UTC, as the table's times are printed.
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
        except (ValueError, OverflowError):
            expected = "neither an age such as 7d or 12h nor a time in ISO 8601"
            self.fail(f"{value!r} is {expected}.", param, ctx)
