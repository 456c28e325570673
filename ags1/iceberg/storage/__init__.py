"""Finds, opens, lists and writes a table's files, and decides which metadata to trust."""
