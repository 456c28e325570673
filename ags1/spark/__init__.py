"""Spark as the engine: jobs over many files, and data sources.

The block work runs in the executors' Python with the same compiled code as elsewhere; only wrapped
keys and the names of a KMS travel (``keys``). ``jobs`` encrypts, decrypts, verifies and rewraps any
number of files. Importing this package imports neither PySpark nor Arrow.
"""
