"""The layout of an AGS1 file, under its public name: see ``ags1.engine.layout``."""

from .engine.layout import *  # noqa: F403
