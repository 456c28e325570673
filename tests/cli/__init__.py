"""Tests of the command line (``ags1.cli``)."""
