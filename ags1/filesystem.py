"""Encrypted files for fsspec, under their public name: see ``ags1.files.fsspec``."""

from .files.fsspec import Ags1FileSystem

__all__ = ["Ags1FileSystem"]
