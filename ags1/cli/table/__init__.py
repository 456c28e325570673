"""``ags1 table …``: encrypted Iceberg tables."""
