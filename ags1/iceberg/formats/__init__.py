"""Parquet files of tables, which Arrow reads and writes: encrypts them under another key. Knows
nothing of tables, or of the keys of a table. ``ags1.columns.avro`` has Avro.

    parquet_modules          reads and authenticates each module of a file
    parquet_transcription    encrypts a file under another key
    parquet_fields, thrift   the structures in a file
    parquet_variants         says in a footer which columns are variants
    variants                 puts the parts of shredded variants together
"""
