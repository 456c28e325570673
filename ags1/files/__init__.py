"""Encrypted files and their keys, in any storage.

``publish`` has the one table of steps by which a file and its key change; ``sidecars`` is the
keystore that has the keys of a file beside it.
"""
