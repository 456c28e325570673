"""Points in time as users give them: a ``datetime``, an age such as ``7d``, or text in ISO 8601.
Independent of what is that old."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import TypeAlias

from ...errors import ArgumentError

# What the arguments of a limit of age take.
Moment: TypeAlias = datetime | timedelta | str

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_MAX_DIGITS = 9


def moment(value: object, name: str) -> datetime:
    """Return the point in time that a ``Moment`` says: itself, an age (a ``timedelta``, or text
    such as ``7d``, ``12h``, ``30m``) before now, or text in ISO 8601, in UTC if it has no offset.

    ``name`` is the argument's. Raises TypeError for another type, and ArgumentError for other text
    and for ages that are negative or that lie before the year 1.
    """
    if isinstance(value, datetime):
        return value
    if not isinstance(value, (str, timedelta)):
        kind = type(value).__name__
        raise TypeError(f"{name} is a datetime, or an age such as '7d' or timedelta(7), not {kind}")
    age = value if isinstance(value, timedelta) else None
    try:
        if isinstance(value, str):
            match = re.fullmatch(rf"([0-9]{{1,{_MAX_DIGITS}}})([smhdw])", value)
            if match is None:
                # Python before 3.11 does not understand Z.
                at = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", value))
                # UTC, as the table's times are printed.
                return at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
            age = timedelta(**{_UNITS[match[2]]: int(match[1])})
        assert age is not None
        if age < timedelta(0):
            raise ValueError("an age is not negative")
        return datetime.now(timezone.utc) - age
    except (ValueError, OverflowError):
        expected = "neither an age such as 7d or 12h nor a time in ISO 8601"
        raise ArgumentError(f"{value!r} is {expected}", parameter=name) from None


def epoch_ms(value: Moment, name: str) -> int:
    """Return ``moment(value, name)`` as epoch ms. Raises as ``moment``."""
    return round(moment(value, name).timestamp() * 1000)
