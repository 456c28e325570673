"""Tests of ``ags1.iceberg.formats``."""
