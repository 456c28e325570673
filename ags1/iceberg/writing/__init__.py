"""Writing encrypted tables: files, manifests, metadata, and their commit to a catalog."""
