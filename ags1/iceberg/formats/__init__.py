"""The file formats Avro and Parquet: reads them, writes them and encrypts them under another key.
Knows nothing of tables, or of the keys of a table.

Avro::

    avro               reads a data file as Arrow batches, by splits and threads
    avro_container     the header, the blocks and the codecs of a file
    avro_projection    makes the program that reads a file's rows as a table's columns
    _avro              runs that program; _avro_columns and _avro_values are parts of it
    avro_writer        writes a data file from Arrow batches
    avro_records       writes the records of manifests and manifest lists
    avro_schema        converts schemas; avro_types resolves the types of a schema
    _avro_decoder      decodes headers and the records of manifests, and copies entries as bytes

Parquet (Arrow reads and writes the rows)::

    parquet_modules          reads and authenticates each module of a file
    parquet_transcription    encrypts a file under another key
    parquet_fields, thrift   the structures in a file
"""
