"""A run of a job on any number of files, whatever runs its tasks (``ags1.host.runners``).

running     one run, from what killed jobs have left to the end of the job's note
waves       prepares files, has tasks work on them, and commits the results
publishing  files get their names; the work of a killed job is finished
report      what became of the run: rows, summary, progress
sidecars    a ledger's keys go to sidecars and back
"""
