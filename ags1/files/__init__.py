"""Files with wrapped keys, and where they lie. Independent of tables and Spark.

fsspec         ags1:: in front of a URL: a file system of fsspec
arrow          the same for pyarrow
ledger         the wrapped keys of many files, and what became of each file of a job
jobs           one run of a job on many files, whatever runs its tasks
plan           which files a job does, and how their work is cut
work           one file, or a range of its blocks: bytes in, bytes out
staging        the files of a job: found, staged and given their names
storage        where bytes lie: a folder, a bucket
publish        the one table of steps by which a file and its key change
sidecars       the keys of a file, kept beside it
keys           the keys of a job
filesystems    the file system of a URL; paths tells a URL from a path
"""
