"""Work on whole tables: verify, expire, rekey, compact, erase, find orphans, migrate."""
