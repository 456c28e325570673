"""Parts of formats that lie inside encrypted files: Avro, Parquet. They need no PyIceberg."""
