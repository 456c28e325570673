"""Tests of ``ags1.iceberg.read``."""
