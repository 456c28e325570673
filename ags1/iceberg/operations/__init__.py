"""Work on whole tables: verify, expire, rekey, compact, migrate, relocate."""
