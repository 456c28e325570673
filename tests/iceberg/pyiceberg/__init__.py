"""Tests of ``ags1.iceberg.pyiceberg``."""
