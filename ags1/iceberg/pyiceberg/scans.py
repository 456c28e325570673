"""The parts of PyIceberg's scans: planning, and the snapshots of an incremental scan."""

from __future__ import annotations

import functools

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import DataScan, IncrementalAppendScan, ManifestGroupPlanner
from pyiceberg.table import _min_sequence_number as min_sequence_number

__all__ = [
    "ManifestPlanner",
    "PlannedScan",
    "appends_between",
    "min_sequence_number",
    "partition_spec_is_void",
]


class ManifestPlanner(ManifestGroupPlanner):
    """PyIceberg's planner, which chooses the files that a scan needs."""

    is_new_enough = staticmethod(ManifestGroupPlanner._check_sequence_number)


class PlannedScan(DataScan):
    """PyIceberg's scan, planned by ``planner``."""

    plan_locally = DataScan._plan_files_local

    def planner(self) -> ManifestGroupPlanner:
        """Return the planner of the scan."""
        raise NotImplementedError

    @functools.cached_property
    def _manifest_planner(self) -> ManifestGroupPlanner:
        return self.planner()


# Checks the snapshots of an incremental scan; returns the IDs of the first and the last one.
appends_between = IncrementalAppendScan._validate_and_resolve_snapshots


def partition_spec_is_void(spec: PartitionSpec) -> bool:
    """Return whether a partition spec has no fields, or only dropped ones."""
    return spec.is_unpartitioned() or all(str(f.transform) == "void" for f in spec.fields)
