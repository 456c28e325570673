"""Checks the version of PyIceberg. 0.12 is tested, and ``ags1[iceberg]`` installs 0.12.x.

With a newer version there is a warning, and tables can be read but not written.
"""

from __future__ import annotations

import warnings

import pyiceberg

_OLDEST = _NEWEST = (0, 12)
_VERSION = tuple(int(part) for part in pyiceberg.__version__.split(".")[:2])
_UNTESTED = (
    f"ags1.iceberg is tested with PyIceberg {'.'.join(map(str, _NEWEST))}, and this is "
    f"{pyiceberg.__version__}"
)
if _VERSION < _OLDEST:
    raise ImportError(f"{_UNTESTED}: pip install 'ags1[iceberg]'")
if _VERSION > _NEWEST:
    warnings.warn(f"{_UNTESTED}: tables can be read but not written", stacklevel=1)


def check_tested_for_writing() -> None:
    """Raise NotImplementedError if PyIceberg is newer than the tested version."""
    if _VERSION > _NEWEST:
        raise NotImplementedError(
            f"{_UNTESTED}: tables can be read but not written. Run: pip install 'ags1[iceberg]'"
        )
