"""Where bytes lie: a folder, or a file system of fsspec, such as a bucket. Independent of what
files hold, of keys, and of jobs.
"""
