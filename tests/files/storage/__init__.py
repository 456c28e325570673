"""Tests of ``ags1.files.storage``."""
