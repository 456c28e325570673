"""What ags1.spark uses of ags1.iceberg. No other module of ags1.spark imports ags1.iceberg. This
module is imported only for tables and Avro files, because PyIceberg is optional."""

# ruff: noqa: F401
# mypy: implicit_reexport

from __future__ import annotations

from ..iceberg.catalog import EncryptedCatalog, PlainTableWarning, load_catalog
from ..iceberg.operations.catalog_jobs import MigrationResult, migrate
from ..iceberg.operations.meter import Progress
from ..iceberg.operations.rekey import Rekeyed
from ..iceberg.operations.verify import verify_table
from ..iceberg.operations.verify.checks import Check, CheckKind, FileChecker, Outcome, Tick
from ..iceberg.operations.verify.findings import TableVerification
from ..iceberg.operations.verify.progress import EstimatedProgress
from ..iceberg.pyiceberg.catalogs import configured_properties
from ..iceberg.pyiceberg.expressions import BooleanRewriter
from ..iceberg.read.filters import bound_filter
from ..iceberg.read.metadata import parse_metadata
from ..iceberg.read.metadata_columns import METADATA_NAMES, filtered_schema
from ..iceberg.read.records import ContentFile
from ..iceberg.read.scan import EncryptedIncrementalScan, EncryptedScan
from ..iceberg.read.splits import splits_of
from ..iceberg.read.tasks import TaskReader
from ..iceberg.spec.column_types import as_stored, check_readable, writable
from ..iceberg.spec.constants import MAIN_BRANCH, POSITION_ID, ROW_ID
from ..iceberg.steps import SnapshotStep
from ..iceberg.storage.byte_meter import ByteMeter
from ..iceberg.storage.output import TableOutput
from ..iceberg.storage.table_files import TableFiles
from ..iceberg.table import EncryptedTable, open_table
from ..iceberg.transaction import EncryptedTransaction
from ..iceberg.write.conversion import RowConversion
from ..iceberg.write.data_files import write_rows
from ..iceberg.write.executors import Done
from ..iceberg.write.partition_replacement import SUMMARY as REPLACES_PARTITIONS
from ..iceberg.write.partition_replacement import PartitionReplacement
from ..iceberg.write.plan import WritePlan
from ..iceberg.write.reencryption import new_location, rewrite_file
from ..iceberg.write.snapshot import FileChange
from ..iceberg.write.view import TableView
