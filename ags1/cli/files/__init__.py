"""``ags1 encrypt|decrypt|cat|verify|inspect``: files, one after the other."""
