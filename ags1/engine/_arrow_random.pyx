# cython: freethreading_compatible=True
"""Gives Arrow's Parquet writer the kernel's random bytes.

``ags1`` encrypts the pages of Parquet files itself. But a program may give our keys to Arrow. Then
Arrow's own copy of OpenSSL draws the nonces, from a generator in the process's memory. A copy of
the process with the same process ID, or of the whole machine, would draw the same nonces under the
same key. OpenSSL lets a program replace the generator (``RAND_set_rand_method``), and Arrow's
wheels export that function. If they do not, or if Arrow shares its OpenSSL with others, nothing
changes.
"""

import os
import sys

from ags1.engine._gcm cimport draw

cdef extern from * nogil:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <dlfcn.h>
    #include <string.h>

    typedef struct {  /* rand_meth_st of openssl/rand.h, the same since 1.1.0 */
        int (*seed)(const void *, int);
        int (*bytes)(unsigned char *, int);
        void (*cleanup)(void);
        int (*add)(const void *, int, double);
        int (*pseudorand)(unsigned char *, int);
        int (*status)(void);
    } ags1_rand_method;

    static int ags1_add(const void *data, int size, double entropy) { return 1; }
    static int ags1_seed(const void *data, int size) { return 1; }
    static int ags1_status(void) { return 1; }
    static ags1_rand_method ags1_method = {ags1_seed, 0, 0, ags1_add, 0, ags1_status};

    /* Returns whether the loaded library at `path` has its own OpenSSL, which uses `bytes` now. */
    static int ags1_replace_random(const char *path, int (*bytes)(unsigned char *, int)) {
        Dl_info found;
        int (*replace)(const ags1_rand_method *);
        void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
        if (!library)
            return 0;
        replace = (int (*)(const ags1_rand_method *))dlsym(library, "RAND_set_rand_method");
        ags1_method.bytes = ags1_method.pseudorand = bytes;
        if (!replace || !dladdr((void *)replace, &found) || strcmp(found.dli_fname, path))
            return 0;
        return replace(&ags1_method);
    }
    """
    bint ags1_replace_random(const char *path, int (*of_bytes)(unsigned char *, int) noexcept nogil)


cdef int kernel_bytes(unsigned char *out, int size) noexcept nogil:
    return size >= 0 and draw(out, <size_t>size)


def draw_from_kernel():
    """Have Arrow draw from the kernel, if its library for Parquet is loaded. Return whether it
    does."""
    arrow = sys.modules.get("pyarrow")
    folder = os.path.dirname(getattr(arrow, "__file__", None) or "")
    names = os.listdir(folder) if folder else ()
    return any([
        ags1_replace_random(os.fsencode(os.path.join(folder, name)), kernel_bytes)
        for name in names if name.startswith("libparquet.")
    ])
