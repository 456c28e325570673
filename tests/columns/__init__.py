"""Tests of ``ags1.columns``."""
