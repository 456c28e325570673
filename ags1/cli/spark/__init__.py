"""``ags1 spark …``: many files, or a whole table, on Spark's executors."""
