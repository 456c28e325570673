"""What a change of rows makes: data files, deletes, manifests, a snapshot."""
