"""Parquet files of tables, whose pages Arrow encodes and decodes: encrypts them. Independent of
tables and the keys of a table. ``ags1.columns.avro`` has Avro.

    parquet_modules          reads and authenticates each module of a file
    parquet_writer           writes rows
    parquet_transcription    encrypts a file under another key
    parquet_encryption       for both: encrypts row groups, and writes the footer of the whole file
    parquet_fields, thrift   the structures in a file
    variants                 puts the parts of shredded variants together
"""
