"""Commits: how a change becomes the table's next version. ``commits.py`` has a drawing."""
