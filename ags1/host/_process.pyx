# cython: freethreading_compatible=True
"""The number of this process: random, and another one in a forked child. A process ID is not
enough, because a child in another PID namespace can have its parent's ID."""

from libc.stdint cimport uint64_t

from kernel cimport kernel_random
from process_page cimport known_process_number, settle_process_number, start_process_number


cdef uint64_t this_process() noexcept nogil:
    # Other modules call this, because each import of process_page.pxd would have another page.
    # Returns 0 if the kernel gives no random bytes. No process has the number 0.
    cdef uint64_t number = known_process_number()
    if number or not kernel_random(<unsigned char *>&number, sizeof(number)):
        return number
    return settle_process_number(number)


def process_number():
    """Return the random number of this process. A forked child has another one."""
    return this_process()


if start_process_number():
    raise MemoryError
