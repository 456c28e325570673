"""Data files inside: Avro and Parquet. Knows nothing of tables and keys."""
