"""Where a job's files lie: ``protocol`` says what a job needs of such a place, ``choice`` which one
a path means."""
