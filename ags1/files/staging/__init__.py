"""The files of a job: found, staged and given their names. Read in this order::

places        the storage of a path, and the files that paths, patterns and folders match
listing       lists many folders at the same time
protocol      what a job needs of every storage, and the life of a target
pieces        the work on one file, and its pieces
marks         the mark of a job
packed        what a driver keeps of a million files
local         mounted folders; local_files has the functions on single files
remote        every file system of fsspec
s3            S3: as remote, but targets are multipart uploads
"""
