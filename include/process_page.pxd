# A page of memory that the kernel zeroes in a forked child. The page is static, so each module that
# cimports this file has its own: only ags1.host._process may use it.
from libc.stdint cimport uint64_t

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <stdint.h>
    #include <sys/mman.h>
    #include <unistd.h>

    /* The number is in a page that is zeroed in every child. The kernel does it, however the child
       was made. A handler does it too, because qemu's user mode and old kernels say that they will,
       and do not. A process ID is not enough: in another PID namespace, a child can have its
       parent's ID. */
    static uint64_t *process_page;

    static void forget_process_number(void) {
        *process_page = 0;
    }

    /* Returns 0, or -1 with errno set. Called once. */
    static int start_process_number(void) {
        size_t size = (size_t)sysconf(_SC_PAGESIZE);
        void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED)
            return -1;
        process_page = (uint64_t *)page;
    #ifdef MADV_WIPEONFORK
        (void)madvise(page, size, MADV_WIPEONFORK);
    #endif
        errno = pthread_atfork(NULL, NULL, forget_process_number);
        return errno ? -1 : 0;
    }

    /* Returns the number in the page; 0 if this process has none yet. */
    static uint64_t known_process_number(void) {
        return __atomic_load_n(process_page, __ATOMIC_RELAXED);
    }

    /* Makes `number` this process's, unless another thread was faster; returns the process's. */
    static uint64_t settle_process_number(uint64_t number) {
        uint64_t none = 0;
        if (__atomic_compare_exchange_n(
                process_page, &none, number, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return number;
        return none;
    }
    """
    int start_process_number()
    uint64_t known_process_number()
    uint64_t settle_process_number(uint64_t number)
