# Memory of malloc for many new objects. In a fresh heap each page costs a page fault, which takes
# longer than AES does for the page. A huge page costs a tenth of that.
cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/mman.h>

    #if defined(__linux__) && defined(__GLIBC__) && !defined(Py_GIL_DISABLED)
    #include <dlfcn.h>
    #include <gnu/libc-version.h>
    /* Whether malloc is glibc's. With another one (jemalloc, a sanitizer), what lies before a block
       may not be readable. */
    static int ags1_has_glibc_malloc(void) {
        static int known; /* Threads may find it at the same time. */
        Dl_info allocator, libc;
        int answer = __atomic_load_n(&known, __ATOMIC_RELAXED);
        if (answer == 0) {
            int found = dladdr((void *)malloc, &allocator) != 0
                && dladdr((void *)gnu_get_libc_version, &libc) != 0;
            answer = found && allocator.dli_fbase == libc.dli_fbase ? 1 : -1;
            __atomic_store_n(&known, answer, __ATOMIC_RELAXED);
        }
        return answer > 0;
    }

    /* glibc notes the size of a block before it, and in a bit of the size whether it is mapped. */
    static int ags1_is_mapped(const char *block) {
        size_t size;
        memcpy(&size, (const char *)((uintptr_t)block - sizeof(size)), sizeof(size));
        return size & 2;
    }
    #endif

    /* Makes the heap larger, so that this thread's next `size` bytes come from huge pages. The
       result keeps the heap so large: give it to free() when the objects are made. It may be NULL,
       and may have no effect. Then the objects cost more. */
    static void *ags1_reserve(size_t size) {
    #if defined(__linux__) && defined(__GLIBC__) && !defined(Py_GIL_DISABLED)
        enum { HUGE_PAGE = 2 << 20 };
        uintptr_t first, end;
        char *pin, *block = ags1_has_glibc_malloc() ? (char *)malloc(size) : NULL;
        if (block != NULL && ags1_is_mapped(block)) {
            /* malloc maps large blocks elsewhere. Once it has got one back, it takes others of that
               size from the heap, and gives less of the heap to the kernel. */
            free(block);
            block = (char *)malloc(size);
        }
        if (block == NULL || ags1_is_mapped(block)) {
            free(block);
            return NULL;
        }
        first = ((uintptr_t)block + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
        end = ((uintptr_t)block + size) & ~(uintptr_t)(HUGE_PAGE - 1);
        if (first < end)
            (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
        /* While the first bytes are in use, malloc does not give the others to the kernel. */
        pin = (char *)realloc(block, 64);
        return pin == NULL ? block : pin;
    #else
        return NULL;
    #endif
    }
    """
    void *reserve "ags1_reserve"(size_t size)
