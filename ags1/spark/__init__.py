"""Spark as the engine: jobs over many files and over whole tables, and data sources.

The block work runs in the executors' Python with the same compiled code as elsewhere; only wrapped
keys and the names of a KMS travel (``keys``). ``jobs`` encrypts, decrypts, verifies and rewraps any
number of files, ``tables`` verifies, migrates and rekeys tables; ``datasource`` and
``iceberg_source`` are Spark's formats "ags1" and "ags1-iceberg". Importing this package imports
neither PySpark nor Arrow.
"""
