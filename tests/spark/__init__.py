"""Tests of the pipeline on a real Spark: one session, two worker threads, this machine."""
