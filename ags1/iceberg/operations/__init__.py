"""Work on whole tables: verify, expire, rekey, migrate, relocate."""
