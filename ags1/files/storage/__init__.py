"""Where bytes lie: a folder, or a file system of fsspec, such as a bucket.

    protocol   the verbs that all storages have
    folder     the folders of this machine, and those that it has mounted
    bucket     the file systems of fsspec; HDFS is one of them

Independent of what files hold, of keys, and of jobs.
"""
