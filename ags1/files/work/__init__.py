"""One file, or a range of its blocks: bytes in, bytes out. Works are pickled, and know no ledger.

blocks  from a source to an output, encrypted or decrypted on the way
tasks   a task does its pieces, under names of its own
"""
