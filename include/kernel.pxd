# Random bytes that no clone of this process gets too: only the kernel can give them.
from libc.stddef cimport size_t

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <sys/random.h>
    #include <sys/types.h>
    #include <unistd.h>

    /* Fills `out`; returns 1, or 0 with errno set. */
    static inline int kernel_random(unsigned char *out, size_t size) {
        while (size) {
    #ifdef __linux__
            ssize_t drawn = getrandom(out, size, 0);
            if (drawn < 0 && errno == EINTR)
                continue;
            if (drawn < 0)
                return 0;
    #else
            size_t drawn = size < 256 ? size : 256;
            if (getentropy(out, drawn))
                return 0;
    #endif
            out += drawn;
            size -= drawn;
        }
        return 1;
    }
    """
    int kernel_random(unsigned char *out, size_t size)
