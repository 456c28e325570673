"""Tests of ``ags1.keys``."""
