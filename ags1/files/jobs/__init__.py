"""A run of a job on any number of files, whatever runs its tasks (``ags1.host.runners``)."""
