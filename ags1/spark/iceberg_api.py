"""What ags1.spark uses of ags1.iceberg. No other module of ags1.spark imports ags1.iceberg. This
module is imported only for tables and Avro files, because PyIceberg is optional."""

# ruff: noqa: F401
# mypy: implicit_reexport

from __future__ import annotations

from ..iceberg.catalog import EncryptedCatalog, PlainTableWarning, load_catalog
from ..iceberg.formats.avro import AvroFile
from ..iceberg.formats.avro_container import AvroCodec
from ..iceberg.formats.avro_schema import iceberg_schema_of_avro
from ..iceberg.formats.avro_writer import AvroFileWriter
from ..iceberg.maintained_table import Rekeyed
from ..iceberg.operations.catalog_jobs import MigrationResult, migrate
from ..iceberg.operations.compact import Compacted
from ..iceberg.operations.meter import Progress
from ..iceberg.operations.verify import verify_table
from ..iceberg.operations.verify.checks import Check, CheckKind, FileChecker, Outcome, Tick
from ..iceberg.operations.verify.findings import TableVerification
from ..iceberg.operations.verify.progress import EstimatedProgress
from ..iceberg.pyiceberg.arrow import iceberg_schema
from ..iceberg.pyiceberg.catalogs import configured_properties
from ..iceberg.pyiceberg.expressions import BooleanRewriter
from ..iceberg.read.filters import bound_filter
from ..iceberg.read.metadata import parse_metadata
from ..iceberg.read.metadata_columns import METADATA_COLUMNS, METADATA_NAMES, filtered_schema
from ..iceberg.read.records import ADDED, ContentFile, ManifestEntry, read_entries
from ..iceberg.read.scan import EncryptedIncrementalScan, EncryptedScan
from ..iceberg.read.splits import splits_of
from ..iceberg.read.tasks import Matches, TaskReader
from ..iceberg.spec.column_types import as_stored, check_readable, writable
from ..iceberg.spec.constants import MAIN_BRANCH, POSITION_ID, ROW_ID
from ..iceberg.steps import SnapshotStep
from ..iceberg.storage.byte_meter import ByteMeter
from ..iceberg.storage.output import TableOutput
from ..iceberg.storage.table_files import TableFiles
from ..iceberg.table import EncryptedTable, open_table
from ..iceberg.transaction import EncryptedTransaction
from ..iceberg.write.conflicts import Read, columns_of, isolation_level
from ..iceberg.write.conversion import RowConversion
from ..iceberg.write.copy_on_write import is_copy_on_write, rewrite_without
from ..iceberg.write.data_files import write_rows
from ..iceberg.write.deletes import DeletePlan, DeletePlanner
from ..iceberg.write.deletion_vectors import write_deletion_vectors
from ..iceberg.write.executors import Done, Merged
from ..iceberg.write.merging import Merge, Merger, OnRead, Part
from ..iceberg.write.partition_replacement import SUMMARY as REPLACES_PARTITIONS
from ..iceberg.write.partition_replacement import PartitionReplacement
from ..iceberg.write.plan import WritePlan
from ..iceberg.write.reencryption import new_location, rewrite_file
from ..iceberg.write.row_lineage import metadata_with_lineage, schema_with_lineage
from ..iceberg.write.snapshot import FileChange
from ..iceberg.write.view import TableView
