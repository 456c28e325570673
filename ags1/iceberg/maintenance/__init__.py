"""What keeps a table in order over the years: keys, snapshots, and where its files lie."""
