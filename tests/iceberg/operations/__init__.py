"""Tests of ``ags1.iceberg.operations``."""
