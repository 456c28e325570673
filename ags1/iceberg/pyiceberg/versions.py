"""Which versions of PyIceberg are tested: 0.12; ``ags1[iceberg]`` installs 0.12.x.

With a newer version tables are read, with a warning, and not written.
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
    warnings.warn(f"{_UNTESTED}: tables can be read, and not written", stacklevel=1)


def check_tested_for_writing() -> None:
    """Raise NotImplementedError where PyIceberg is newer than the version that was tested."""
    if _VERSION > _NEWEST:
        raise NotImplementedError(
            f"{_UNTESTED}. Tables are read with it, and not written: pip install 'ags1[iceberg]'"
        )
