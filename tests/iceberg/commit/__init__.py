"""Tests of ``ags1.iceberg.commit``."""
