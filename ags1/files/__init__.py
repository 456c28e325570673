"""Files with wrapped keys, and where they lie. Independent of tables and Spark."""
