"""Which type of a column may become which other, as Java says: Iceberg 1.12.0, asked for each pair.

``interop/test_evolution.py`` asks again what is recorded here.
"""

from __future__ import annotations

TYPES = (
    "boolean int long float double date time timestamp timestamptz timestamp_ns timestamptz_ns "
    "string uuid binary fixed[16] fixed[8] unknown geometry geography"
).split() + [f"decimal({p}, {s})" for p, s in ((4, 2), (5, 2), (10, 2), (10, 4), (38, 2))]
# What Java's SchemaUpdate.updateColumn takes. It throws for all other pairs of different types.
JAVA_ALLOWS = {
    ("int", "long"),
    ("float", "double"),
    ("decimal(4, 2)", "decimal(5, 2)"),
    ("decimal(4, 2)", "decimal(10, 2)"),
    ("decimal(4, 2)", "decimal(38, 2)"),
    ("decimal(5, 2)", "decimal(10, 2)"),
    ("decimal(5, 2)", "decimal(38, 2)"),
    ("decimal(10, 2)", "decimal(38, 2)"),
}
PAIRS = [(old, new) for old in TYPES for new in TYPES if old != new]
