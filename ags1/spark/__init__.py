"""ags1 on Spark: jobs over many files and over whole tables, and two data sources.

Executors run the same compiled code as one machine does. Only wrapped keys and the configuration of
a KMS are sent to them (``ags1.files.keys``). Users import these names:

    jobs             encrypt, decrypt, verify and rewrap any number of files
    tables           verify, migrate and rekey whole encrypted tables
    datasource       the data source "ags1": encrypted files as rows
    iceberg_source   the data source "ags1-iceberg": encrypted tables as rows
    queries          ``read_table`` and ``count``, which this package also exports
    sql_session      ``session`` and ``configure``, exported too: Spark SQL on encrypted tables

Where files lie, and their ledger, are in ``ags1.files``. Tables are the work of
``ags1.iceberg.distributed``, the one package of ``ags1.iceberg`` that is imported here. Imports
point down these floors only:

    tables
    queries      sql_session
    datasource   iceberg_source   sql_catalog
                 table_access   a table that each process opens for itself
    jobs
    known_options
    options  splits  workers  planning_errors  registration  arrow_rows
    plugin       the jars for Spark SQL; ``jar`` is exported

This package itself imports neither PySpark nor Arrow, until one of the functions is named that
need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .plugin import jar

if TYPE_CHECKING:
    from .queries import count, read_table
    from .sql_session import configure, session

__all__ = ["configure", "count", "jar", "read_table", "session"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # PySpark, PyIceberg and Arrow are optional.
    if name in ("configure", "session"):
        from . import sql_session as owner
    else:
        from . import queries as owner  # type: ignore[no-redef]
    return getattr(owner, name)
