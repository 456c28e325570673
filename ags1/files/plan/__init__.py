"""Which files a job does, and how their work is cut into tasks.

    patterns   which files a user wants
    selection  the files that paths and a ledger mean, and those of them that are not done
    cutting    the work is cut into tasks, and the tasks into waves

``staging.places`` lists folders and buckets.
"""
