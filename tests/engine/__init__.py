"""AGS1 files: the block cipher, streams, whole files and their key metadata (``ags1``)."""
