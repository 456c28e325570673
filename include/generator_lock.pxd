# A lock for a random generator that is not the kernel's. The lock is static, so each module that
# cimports this file has its own: only ags1.engine._gcm may use it.
from libc.stdint cimport uint64_t

cdef extern from * nogil:
    """
    #include <pthread.h>
    #include <stdint.h>
    #include <sys/types.h>
    #include <unistd.h>

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
       parent's, so that both would draw the same numbers. `number` is that of the process (see
       process_page.pxd). Called with the generator locked. */
    static int is_unseen_child(uint64_t number) {
        static uint64_t known;
        static pid_t known_id;
        if (number == known)
            return !number;
        if (known && known_id == getpid())
            return 1;
        known = number;
        known_id = getpid();
        return 0;
    }
    """
    void lock_generator()
    void unlock_generator()
    int guard_generator()
    bint is_unseen_child(uint64_t number)
