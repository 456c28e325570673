"""What the operating system offers, and its corners. Independent of AGS1.

atomic         files that appear whole or not at all
private_file   small files that only their owner may read
regular_file   files that are no pipe, device or folder
descriptors    outputs that are streams: pipes, devices, open files
process        objects that a forked child must not share; _process has the process's number
threads        a pool of threads that a signal may interrupt
pools          threads for many calls that mostly wait
shared_reader  a file that several threads of another library read
runners        what runs tasks in other processes
cpu            how many CPUs there are, and their features
strict_json    JSON that no two parsers read differently
"""
