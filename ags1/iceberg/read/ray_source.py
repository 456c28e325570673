"""``read_ray``: a table as a dataset of Ray, whose tasks have no keys (see ``workers``)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import ALWAYS_TRUE, Table

from .workers import SentScan

if TYPE_CHECKING:
    import ray.data


def read_ray(
    open_table: Callable[[], Table],
    row_filter: str | BooleanExpression = ALWAYS_TRUE,
    selected_fields: tuple[str, ...] = ("*",),
    snapshot_id: int | None = None,
    *,
    partition_size: int = 128 << 20,
) -> ray.data.Dataset:
    """Return a snapshot of a table, by default the current one, as a dataset of Ray.

    Every worker calls ``open_table``, a function without arguments that loads the table, for
    example from a catalog. The tasks have this function and the paths of the files, but no keys: a
    worker gets them from the KMS by its own credentials. If the function holds a table or a KMS
    client, it cannot be sent to another process.

    ``row_filter`` and ``selected_fields`` are those of ``scan``. Ray hands over neither the columns
    nor the filters of a query. A task reads one or more whole files, of about ``partition_size``
    stored bytes together. Ray keeps rows that were read in its object store, not encrypted, and
    writes them to the disk of its nodes if they do not fit.

    Raises ImportError if Ray is not installed, TypeError if ``open_table`` is no function or the
    table is not encrypted, and what planning raises.
    """
    import ray.data  # an optional dependency
    from ray.data.block import BlockMetadata

    sent = SentScan.of(open_table, row_filter, selected_fields, snapshot_id)
    schema, partitions = sent.schema(), sent.partitions(partition_size) or [[]]

    class Ags1Datasource(ray.data.Datasource):  # type: ignore[misc]
        def estimate_inmemory_data_size(self) -> None:
            return None

        def get_read_tasks(
            self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
        ) -> list[ray.data.ReadTask]:
            limit = {} if per_task_row_limit is None else {"per_task_row_limit": per_task_row_limit}
            tasks = []
            for paths in partitions:
                # How many rows are left is known after deletes and the filter.
                about = BlockMetadata(
                    num_rows=None, size_bytes=None, input_files=paths, exec_stats=None
                )
                read = functools.partial(_read, paths, sent)
                tasks.append(ray.data.ReadTask(read, about, schema=schema, **limit))
            return tasks

    return ray.data.read_datasource(Ags1Datasource())


def _read(paths: list[str], sent: SentScan) -> list[pa.Table]:
    return [sent.read(paths)]
