"""Copies an encrypted table to another location. Begin with ``relocate``."""
