"""The plug-in for Iceberg's Java runtime, which ``make jvm`` builds. Knows nothing of Spark."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).with_name("jars")


def jar() -> str:
    """Return the path of the plug-in's jar, for ``spark.jars``. The guide to Spark SQL says what
    else Spark needs. Raises FileNotFoundError if this installation has no jar."""
    found = sorted(_FOLDER.glob("ags1-iceberg-*.jar"))
    if not found:
        raise FileNotFoundError(
            f"there is no jar of the plug-in in {_FOLDER}, because this ags1 was installed without "
            "it: in a checkout of the same version, run `make jvm` (it needs JDK 17 and Maven)"
        )
    return str(found[-1])
