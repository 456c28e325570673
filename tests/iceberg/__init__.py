"""Tests of encrypted tables (``ags1.iceberg``); each folder tests the package of its name."""
