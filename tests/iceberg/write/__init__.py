"""Tests of ``ags1.iceberg.write``."""
