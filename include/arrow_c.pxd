# Arrow's C data interface: https://arrow.apache.org/docs/format/CDataInterface.html
from libc.stdint cimport int32_t, int64_t

cdef extern from *:
    """
    #include <stdint.h>

    #ifndef ARROW_C_DATA_INTERFACE
    #define ARROW_C_DATA_INTERFACE
    struct ArrowSchema {
        const char *format;
        const char *name;
        const char *metadata;
        int64_t flags;
        int64_t n_children;
        struct ArrowSchema **children;
        struct ArrowSchema *dictionary;
        void (*release)(struct ArrowSchema *);
        void *private_data;
    };
    struct ArrowArray {
        int64_t length;
        int64_t null_count;
        int64_t offset;
        int64_t n_buffers;
        int64_t n_children;
        const void **buffers;
        struct ArrowArray **children;
        struct ArrowArray *dictionary;
        void (*release)(struct ArrowArray *);
        void *private_data;
    };
    #endif
    #ifndef ARROW_C_STREAM_INTERFACE
    #define ARROW_C_STREAM_INTERFACE
    struct ArrowArrayStream {
        int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *);
        int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *);
        const char *(*get_last_error)(struct ArrowArrayStream *);
        void (*release)(struct ArrowArrayStream *);
        void *private_data;
    };
    #endif

    /* One read of a number that need not be aligned and that others may change meanwhile. */
    static inline int32_t ags1_read_int32(const void *at) {
        return ((const volatile struct { int32_t n; } __attribute__((packed)) *)at)->n;
    }
    static inline int64_t ags1_read_int64(const void *at) {
        return ((const volatile struct { int64_t n; } __attribute__((packed)) *)at)->n;
    }
    """
    enum:
        ARROW_FLAG_NULLABLE "2"

    struct ArrowSchema:
        const char *format
        const char *name
        const char *metadata
        int64_t flags
        int64_t n_children
        ArrowSchema **children
        ArrowSchema *dictionary
        void (*release)(ArrowSchema *) noexcept nogil
        void *private_data

    struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void **buffers
        ArrowArray **children
        ArrowArray *dictionary
        void (*release)(ArrowArray *) noexcept nogil
        void *private_data

    struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream *, ArrowSchema *) noexcept
        int (*get_next)(ArrowArrayStream *, ArrowArray *) noexcept
        const char *(*get_last_error)(ArrowArrayStream *) noexcept
        void (*release)(ArrowArrayStream *) noexcept nogil
        void *private_data

    int32_t read_int32 "ags1_read_int32"(const void *at) nogil
    int64_t read_int64 "ags1_read_int64"(const void *at) nogil
