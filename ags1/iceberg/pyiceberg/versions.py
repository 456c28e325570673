"""Checks the version of PyIceberg. 0.12 is tested, and ``ags1[iceberg]`` installs 0.12.x.

With a newer version there is a warning, and tables can be read but not written. The environment
variable ``AGS1_UNTESTED_PYICEBERG=write`` allows to write them: for those who test a new version.
"""

from __future__ import annotations

import os
import warnings

import pyiceberg

_OLDEST = _NEWEST = (0, 12)
_VERSION = tuple(int(part) for part in pyiceberg.__version__.split(".")[:2])
_VARIABLE = "AGS1_UNTESTED_PYICEBERG"
_UNTESTED = (
    f"ags1.iceberg is tested with PyIceberg {'.'.join(map(str, _NEWEST))}, and this is "
    f"{pyiceberg.__version__}"
)
_CANNOT_WRITE = _VERSION > _NEWEST and os.environ.get(_VARIABLE) != "write"
if _VERSION < _OLDEST:
    raise ImportError(f"{_UNTESTED}: pip install 'ags1[iceberg]'")
if _VERSION > _NEWEST:
    consequence = ": tables can be read but not written" if _CANNOT_WRITE else ""
    warnings.warn(f"{_UNTESTED}{consequence}", stacklevel=1)


def check_tested_for_writing() -> None:
    """Raise NotImplementedError if PyIceberg is newer than the tested version, and the environment
    does not allow to write with it."""
    if _CANNOT_WRITE:
        raise NotImplementedError(
            f"{_UNTESTED}: tables can be read but not written. Run: pip install 'ags1[iceberg]'"
        )
