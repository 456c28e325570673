"""``ags1 keygen`` and ``ags1 key …``: the master keys of a keyring, and sidecars wrapped again."""
