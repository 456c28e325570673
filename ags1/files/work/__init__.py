"""One file, or a range of its blocks: bytes in, bytes out. Works are pickled and know no ledger."""
