"""Parquet files of tables, whose pages Arrow encodes and decodes: encrypts them, and shows their
plaintext. Independent of tables and the keys of a table. ``ags1.columns.avro`` has Avro.

    _modules                 seals and opens the modules of a file, many pages in one call
    parquet_view             shows an encrypted file as an unencrypted one
    parquet_modules          reads and authenticates each module of a file
    parquet_writer           writes rows
    parquet_transcription    encrypts a file under another key
    parquet_encryption       for both: encrypts row groups, and writes the footer of the whole file
    parquet_fields, thrift   the structures in a file
    variants                 puts the parts of shredded variants together
"""
