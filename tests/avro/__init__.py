"""Tests of ``ags1.avro``."""
