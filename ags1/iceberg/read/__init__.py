"""Reads a table: metadata.json, snapshots, manifests, plans, filters, data files, rows."""
