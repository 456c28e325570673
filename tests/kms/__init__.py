"""Tests of ``ags1.kms``, against real and emulated services."""
