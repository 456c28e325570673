"""Columns of rows, as Arrow batches. Independent of tables and keys.

avro             Avro files, read and written as Arrow batches
arrow_layouts    batches in plain layouts; arrow_nested has those of nested columns
row_groups       where the row groups of a Parquet file begin
"""
