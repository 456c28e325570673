"""Parquet files of tables, whose pages Arrow encodes and decodes: encrypts them, and shows their
plaintext. Independent of tables and the keys of a table. ``ags1.columns.avro`` has Avro.
"""
