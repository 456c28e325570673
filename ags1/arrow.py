"""Encrypted files for pyarrow, under their public name: see ``ags1.files.arrow``."""

from .files.arrow import filesystem

__all__ = ["filesystem"]
