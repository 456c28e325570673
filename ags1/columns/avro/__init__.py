"""Avro files, encrypted or not: read as Arrow batches, and written from them, with Iceberg's types.
Independent of tables and wrapped keys.

    files          reads a file as Arrow batches, by splits and threads
    container      the header, the blocks and the codecs of a file
    projection     makes the program that reads a file's rows as the columns of a schema
    _program       runs that program; _columns and _values are parts of it
    writer         writes a file from Arrow batches
    records        writes the records of manifests and manifest lists
    schema         converts schemas; types resolves the types of a schema
    variants       the type that PyIceberg does not have
    _decoder       decodes headers and the records of manifests, and copies entries as bytes
"""
