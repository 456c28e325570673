"""Where a job's files lie. ``protocol`` says what a job needs of a storage, ``pieces`` what a
storage is told of the work, and ``choice`` picks the storage that a path means."""
