# Two things that only the kernel can give: random bytes that no clone of this process gets too,
# and a page of memory that a fork zeroes. Beside them a lock for a generator that is not the
# kernel's. Page and lock are static, so each module that cimports this file has its own: only _gcm
# may use it.
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <stdint.h>
    #include <sys/mman.h>
    #include <sys/random.h>
    #include <sys/types.h>
    #include <unistd.h>

    /* Fills `out`; returns 1, or 0 with errno set. */
    static int kernel_random(unsigned char *out, size_t size) {
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

    /* Returns this process's random number, which its children do not have; 0 on failure. */
    static uint64_t current_process_number(void) {
        uint64_t number = __atomic_load_n(process_page, __ATOMIC_RELAXED), none = 0;
        if (number)
            return number;
        if (!kernel_random((unsigned char *)&number, sizeof(number)) || !number)
            return 0;
        if (__atomic_compare_exchange_n(
                process_page, &none, number, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return number;
        return none; /* another thread was faster */
    }

    /* OpenSSL's generators have locks. If a thread holds one while another forks, it stays locked
       in the child for ever. So a fork waits until no thread is in a generator. */
    static pthread_mutex_t generator_mutex = PTHREAD_MUTEX_INITIALIZER;

    static void lock_generator(void) {
        pthread_mutex_lock(&generator_mutex);
    }

    static void unlock_generator(void) {
        pthread_mutex_unlock(&generator_mutex);
    }

    /* Returns 0, or an error number. Called once. */
    static int guard_generator(void) {
        return pthread_atfork(lock_generator, unlock_generator, unlock_generator);
    }

    /* OpenSSL knows a child by its process ID. Returns whether this process is a child that has its
       parent's, so that both would draw the same numbers. Called with the generator locked. */
    static int is_unseen_child(void) {
        static uint64_t known;
        static pid_t known_id;
        uint64_t number = current_process_number();
        if (number == known)
            return !number;
        if (known && known_id == getpid())
            return 1;
        known = number;
        known_id = getpid();
        return 0;
    }
    """
    int kernel_random(unsigned char *out, size_t size)
    int start_process_number()
    uint64_t current_process_number()
    void lock_generator()
    void unlock_generator()
    int guard_generator()
    bint is_unseen_child()
