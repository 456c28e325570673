"""Parquet files of tables: shows Arrow their plaintext, and encrypts them under another key. Knows
nothing of tables, or of the keys of a table. ``ags1.columns.avro`` has Avro.

    _modules                 opens the modules of a file, all pages of a column in one call
    parquet_view             shows an encrypted file as an unencrypted one
    parquet_modules          reads and authenticates each module of a file
    parquet_transcription    encrypts a file under another key
    parquet_fields, thrift   the structures in a file
    parquet_variants         says in a footer which columns are variants
    variants                 puts the parts of shredded variants together
"""
