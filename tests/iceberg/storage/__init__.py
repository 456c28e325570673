"""Tests of ``ags1.iceberg.storage``."""
