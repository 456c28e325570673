# Atomic operations of the C compiler, for values that threads share without the GIL. In C their
# names have a prefix, because <stdatomic.h> has macros of these names, which clang allows for
# _Atomic types only.
from libc.stdint cimport uint64_t

cdef extern from * nogil:
    """
    #include <stdint.h>

    /* Returns the pointer stored at `place`, and stores NULL there. */
    static inline void *ags1_atomic_take(void **place) {
        return __atomic_exchange_n(place, (void *)0, __ATOMIC_ACQUIRE);
    }

    /* Stores `it` at `place` if NULL is there; returns whether it did. */
    static inline int ags1_atomic_put(void **place, void *it) {
        void *nothing = 0;
        return __atomic_compare_exchange_n(
            place, &nothing, it, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    }

    /* Adds `n` and returns what was there before. */
    static inline uint64_t ags1_atomic_add(uint64_t *counter, uint64_t n) {
        return __atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
    }

    static inline int ags1_atomic_load(int *flag) {
        return __atomic_load_n(flag, __ATOMIC_RELAXED);
    }

    /* Sets `flag`; returns whether it was set before. */
    static inline int ags1_atomic_set(int *flag) {
        return __atomic_exchange_n(flag, 1, __ATOMIC_ACQ_REL);
    }

    /* Adds a user, unless the last one has left; returns whether it did. */
    static inline int ags1_atomic_join(int *users) {
        int count = __atomic_load_n(users, __ATOMIC_RELAXED);
        while (count && !__atomic_compare_exchange_n(
                   users, &count, count + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
        return count;
    }

    /* Removes a user; returns the number of the others. */
    static inline int ags1_atomic_leave(int *users) {
        return __atomic_sub_fetch(users, 1, __ATOMIC_ACQ_REL);
    }
    """
    void *atomic_take "ags1_atomic_take"(void **place)
    bint atomic_put "ags1_atomic_put"(void **place, void *it)
    uint64_t atomic_add "ags1_atomic_add"(uint64_t *counter, uint64_t n)
    bint atomic_load "ags1_atomic_load"(int *flag)
    bint atomic_set "ags1_atomic_set"(int *flag)
    bint atomic_join "ags1_atomic_join"(int *users)
    int atomic_leave "ags1_atomic_leave"(int *users)
