# Memory of malloc for many new objects. In a fresh heap each page costs a page fault, which takes
# longer than AES does for the page. A huge page costs a tenth of that.
cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <stdlib.h>
    #include <sys/mman.h>

    /* Makes the heap larger, so that this thread's next `size` bytes come from huge pages. The
       result keeps the heap so large: give it to free() when the objects are made. It may be NULL,
       and may have no effect. Then the objects cost more. */
    static void *ags1_reserve(size_t size) {
    #if defined(__linux__) && defined(__GLIBC__) && !defined(Py_GIL_DISABLED)
        enum { COLLAPSE = 25, HUGE_PAGE = 2 << 20 }; /* MADV_COLLAPSE is of Linux 6.1 */
        /* From 128 KiB on, malloc maps memory elsewhere. It uses 16 bytes of each piece itself. */
        enum { PIECE = 112 << 10 };
        size_t made, count = size / PIECE + 2, first, next;
        char *pin, **pieces = (char **)malloc(count * sizeof(*pieces));
        if (pieces == NULL)
            return NULL;
        for (made = 0; made < count; made++) {
            pieces[made] = (char *)malloc(PIECE - 16);
            if (pieces[made] == NULL)
                break;
        }
        for (first = 0; first < made; first = next) {
            uintptr_t begin, end;
            next = first + 1;
            while (next < made && pieces[next] == pieces[next - 1] + PIECE)
                next++;
            begin = ((uintptr_t)pieces[first] + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
            end = ((uintptr_t)pieces[next - 1] + PIECE) & ~(uintptr_t)(HUGE_PAGE - 1);
            if (begin < end)
                (void)madvise((void *)begin, end - begin, COLLAPSE);
        }
        /* While the last piece is there, malloc does not give the others to the kernel. */
        pin = made ? pieces[made - 1] : NULL;
        for (next = 0; next + 1 < made; next++)
            free(pieces[next]);
        free(pieces);
        return pin;
    #else
        return NULL;
    #endif
    }
    """
    void *reserve "ags1_reserve"(size_t size)
