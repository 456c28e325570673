"""``read_dask``: a table as a data frame of Dask, whose tasks have no keys (see ``workers``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import ALWAYS_TRUE, Table

from .workers import SentScan

if TYPE_CHECKING:
    import dask.dataframe
    import pandas


def read_dask(
    open_table: Callable[[], Table],
    row_filter: str | BooleanExpression = ALWAYS_TRUE,
    selected_fields: tuple[str, ...] = ("*",),
    snapshot_id: int | None = None,
    *,
    partition_size: int = 128 << 20,
) -> dask.dataframe.DataFrame:
    """Return a snapshot of a table, by default the current one, as a data frame of Dask.

    Every worker calls ``open_table``, a function without arguments that loads the table, for
    example from a catalog. The graph has this function and the paths of the files, but no keys: a
    worker gets them from the KMS by its own credentials. If the function holds a table or a KMS
    client, it cannot be sent to another process.

    ``row_filter`` and ``selected_fields`` are those of ``scan``. Dask also pushes down the columns
    of a query, but not its filters. A partition has one or more whole files, of about
    ``partition_size`` stored bytes together. Columns have pandas' types of Arrow.

    Raises ImportError if Dask is not installed, TypeError if ``open_table`` is no function or the
    table is not encrypted, and what planning raises.
    """
    import dask.dataframe  # an optional dependency
    import pandas

    sent = SentScan.of(open_table, row_filter, selected_fields, snapshot_id)
    make: Any = dask.dataframe.from_map
    frame: dask.dataframe.DataFrame = make(
        _read,
        sent.partitions(partition_size) or [[]],
        sent=sent,
        meta=sent.schema().empty_table().to_pandas(types_mapper=pandas.ArrowDtype),
        label="read-ags1",
    )
    return frame


def _read(paths: list[str], sent: SentScan, columns: list[str] | None = None) -> pandas.DataFrame:
    """Return the rows of some files. Dask finds by the name ``columns`` that it may choose them."""
    import pandas  # an optional dependency

    frame = sent.read(paths, columns).to_pandas(types_mapper=pandas.ArrowDtype)
    return frame if columns is None else frame[columns]
