# cython: freethreading_compatible=True
"""A range of blocks from one file descriptor to another, without the GIL.

Blocks go through one buffer, in batches of about 1 MiB (at least one block). Encrypting a batch of
two blocks; decrypting goes the other way::

    source      | text 0        | text 1        |
                  | preadv        | preadv                 texts go into their slots,
    buffer  nonce | text 0 | tag | nonce | text 1 | tag    are encrypted there,
                  | pwrite                                 and the slots are written at once
    target      | slot 0               | slot 1               |

The buffer is used again for the whole range. If a block's tag does not verify, the batch is not
written. Independent of threads and paths: each thread of the caller works on a range of its own
with the same ``Pump``, with or without the GIL.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc cimport errno
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from posix.fcntl cimport F_DUPFD_CLOEXEC, fcntl
from posix.types cimport off_t
from posix.unistd cimport close as close_fd

from ags1.engine._gcm cimport (
    BlockCipher, GcmContext, libcrypto_error, open_run, run_blocks, seal_run, unauthentic, wipe,
)
from ags1.engine._messages cimport put_header
from ags1.engine.layout cimport BLOCK_OVERHEAD, HEADER_SIZE, NONCE_SIZE
from atomics cimport atomic_add, atomic_join, atomic_leave, atomic_load, atomic_set
from sys_uio cimport iovec, preadv, pwritev

import os

from ..errors import TruncatedError

cdef extern from *:
    """
    #include <errno.h>
    #include <fcntl.h>
    #include <stddef.h>
    #ifdef __linux__
    #include <linux/magic.h>
    #include <sys/vfs.h>
    static int ags1_is_in_memory(int fd) {
        struct statfs found;
        return fstatfs(fd, &found) == 0 && found.f_type == TMPFS_MAGIC;
    }
    #define ags1_allocate(fd, size) fallocate((fd), 0, 0, (size))
    #define ags1_start_writing(fd, at, size) \\
        sync_file_range((fd), (at), (size), SYNC_FILE_RANGE_WRITE)
    #else
    #define ags1_is_in_memory(fd) 0
    #define ags1_allocate(fd, size) (errno = ENOTSUP, -1)
    #define ags1_start_writing(fd, at, size) 0
    #endif
    """
    bint ags1_is_in_memory(int fd) nogil
    int ags1_allocate(int fd, off_t size) nogil
    int ags1_start_writing(int fd, off_t at, off_t size) nogil

cdef enum:
    # A batch is about this many bytes, which stay in the CPU's cache.
    BATCH_SIZE = 1 << 20
    MAX_BATCH_BLOCKS = 256
    # One call writes one aligned piece of this size, or a part of it. For more, Linux takes larger
    # pages for its cache. In a virtual machine that reports free pages to its host, the host may
    # have to give each of them again: that took up to ten times as long. Files in memory (tmpfs)
    # have small pages anyway, and one call writes all.
    WRITE_SIZE = 64 << 10
    WRITE_SIZE_IN_MEMORY = 1 << 30

cdef enum Outcome:
    DONE
    STOPPED
    CUT_SHORT
    READ_FAILED
    WRITE_FAILED
    NOT_SEALED
    NOT_AUTHENTIC

cdef struct Range:
    int source
    int target
    size_t block_size
    uint32_t first_block
    long long text_size
    bint sealing
    bint durable
    size_t write_size
    int batch
    # The file's header lies before them.
    unsigned char *slots


cdef ssize_t move(
    size_t write_size, int fd, iovec *parts, int count, off_t offset
) noexcept nogil:
    """Read all of ``parts`` at ``offset``, or write them in pieces that end at multiples of
    ``write_size``, unless that is 0. Continue after short counts and signals.
    Returns the number of bytes, which is smaller only if the file that is read ends; or -1 with
    errno set. Changes ``parts``."""
    cdef ssize_t total = 0, n
    while count:
        if write_size:
            n = write_some(write_size, fd, parts, count, offset + total)
        else:
            n = preadv(fd, parts, count, offset + total)
        if n < 0:
            if errno.errno == errno.EINTR:
                continue
            return -1
        if n == 0 and write_size:
            errno.errno = errno.EIO
            return -1
        if n == 0:
            break
        total += n
        while count and <size_t>n >= parts.iov_len:
            n -= parts.iov_len
            parts += 1
            count -= 1
        if count:
            parts.iov_base = <char *>parts.iov_base + n
            parts.iov_len -= n
    return total


cdef ssize_t write_some(
    size_t write_size, int fd, const iovec *parts, int count, off_t offset
) noexcept nogil:
    """Write the beginning of ``parts``, up to the next multiple of ``write_size`` in the file."""
    cdef size_t room = write_size - <size_t>offset % write_size, size = 0
    cdef iovec first = parts[0]
    cdef int whole = 0
    while whole < count and size + parts[whole].iov_len <= room:
        size += parts[whole].iov_len
        whole += 1
    if whole:
        return pwritev(fd, parts, whole, offset)
    first.iov_len = room
    return pwritev(fd, &first, 1, offset)


cdef Outcome transfer(
    GcmContext *context, const Range *r, int *stopping, uint64_t *bytes_done,
    long long *failed_block,
) noexcept nogil:
    cdef iovec texts[MAX_BATCH_BLOCKS]
    cdef iovec slots
    cdef iovec *read_into
    cdef iovec *written_from
    cdef size_t stride = r.block_size + BLOCK_OVERHEAD, text_size, read_size, written_size
    cdef uint32_t block = r.first_block
    cdef long long left = r.text_size
    cdef off_t read_at, written_at
    cdef ssize_t moved, bad
    cdef int blocks
    while not atomic_load(stopping):
        blocks = 0
        text_size = 0
        while blocks < r.batch and (left > <long long>text_size or blocks == 0):
            texts[blocks].iov_base = r.slots + blocks * stride + NONCE_SIZE
            texts[blocks].iov_len = min(r.block_size, <size_t>left - text_size)
            text_size += texts[blocks].iov_len
            blocks += 1
        slots.iov_base = r.slots
        slots.iov_len = text_size + <size_t>blocks * BLOCK_OVERHEAD
        read_into, read_size, read_at = &slots, slots.iov_len, HEADER_SIZE + <off_t>block * stride
        written_from, written_size, written_at = texts, text_size, <off_t>block * r.block_size
        if r.sealing:
            read_into, written_from = written_from, read_into
            read_size, written_size = written_size, read_size
            read_at, written_at = written_at, read_at
            if block == 0:
                slots.iov_base = r.slots - HEADER_SIZE
                slots.iov_len += HEADER_SIZE
                written_at = 0

        moved = move(0, r.source, read_into, blocks if r.sealing else 1, read_at)
        if moved != <ssize_t>read_size:
            return READ_FAILED if moved < 0 else CUT_SHORT
        if r.sealing:
            if seal_run(context, r.slots + NONCE_SIZE, stride, r.slots, r.block_size, text_size,
                        block, NULL):
                return NOT_SEALED
        else:
            bad = open_run(context, r.slots, r.slots + NONCE_SIZE, stride, r.block_size, text_size,
                           block, False)
            if bad >= 0:
                failed_block[0] = block + bad
                return NOT_AUTHENTIC
        if r.target >= 0 and written_size:
            if move(r.write_size, r.target, written_from, 1 if r.sealing else blocks,
                    written_at) < 0:
                return WRITE_FAILED
            if r.durable:
                ags1_start_writing(r.target, written_at, written_size)

        block += blocks
        left -= text_size
        atomic_add(bytes_done, text_size)
        if left == 0:
            return DONE
    return STOPPED


cdef int duplicate(int fd, str name) except -1:
    cdef int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0)
    if copy < 0:
        raise OSError(errno.errno, os.strerror(errno.errno), name)
    return copy


cdef class Descriptor:
    """A file descriptor that is closed when its last user drops it. This is not in Python, which
    ignores the KeyboardInterrupt of a signal that arrives in a ``__del__``."""

    cdef readonly int fd

    def __cinit__(self, int fd):
        self.fd = fd

    def __dealloc__(self):
        close_fd(self.fd)


def allocate(int fd, off_t size):
    """Make ``fd`` a file of ``size`` bytes, and reserve the space on the disk. Does nothing if the
    file system does not support that. Raises OSError if there is no space."""
    cdef int error = errno.EINTR if size else 0
    while error == errno.EINTR:
        PyErr_CheckSignals()
        with nogil:
            error = errno.errno if ags1_allocate(fd, size) else 0
    if error in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise OSError(error, os.strerror(error))


cdef class Pump:
    """Encrypts, decrypts or verifies ranges of blocks, in as many threads as call it. ``source``
    and ``target`` are seekable descriptors. Their positions are neither used nor moved. Without a
    target, blocks are only verified. ``durable`` says that the target will be synced later, so the
    disk starts to write each batch at once. ``shared`` says that other threads than the one that
    owns the descriptors will call it."""

    cdef uint64_t _bytes_done
    cdef int _stopping
    cdef int _closed
    # The number of running calls, plus one until close() is called. Whoever takes it down to 0
    # closes the descriptors.
    cdef int _users
    cdef int _source
    cdef int _target
    cdef bint _durable
    cdef bint _shared

    def __cinit__(self, int source, int target=-1, *, bint durable=False, bint shared=True):
        self._source = self._target = -1
        self._users = 1
        self._durable = durable
        self._shared = shared
        if not shared:
            self._source, self._target = source, target
            return
        # Duplicates: if the caller closed its descriptors while a thread is still working, their
        # numbers could soon belong to other files.
        self._source = duplicate(source, "source")
        if target >= 0:
            self._target = duplicate(target, "target")

    def __dealloc__(self):
        if not self._closed:
            self.leave()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Close the descriptors as soon as no call is running. Later calls raise ValueError."""
        if not atomic_set(&self._closed):
            self.leave()

    cdef int enter(self) except -1:
        if atomic_load(&self._closed) or not atomic_join(&self._users):
            raise ValueError("the files are closed")
        return 0

    cdef void leave(self) noexcept:
        if atomic_leave(&self._users) == 0 and self._shared:
            if self._source >= 0:
                close_fd(self._source)
            if self._target >= 0:
                close_fd(self._target)

    @property
    def bytes_done(self):
        """The plaintext bytes that all calls have processed so far."""
        return atomic_add(&self._bytes_done, 0)

    def stop(self):
        """Make every call return False before its next batch."""
        atomic_set(&self._stopping)

    def seal(self, BlockCipher cipher not None, uint32_t first_block, long long text_size):
        """Encrypt ``text_size`` bytes of the source, from the beginning of block ``first_block``. A
        file's header is written with its block 0. Returns whether it finished; False means that
        ``stop`` was called. Raises TruncatedError if the source ends early, and OSError. Its
        ``filename`` is the word ``source`` or ``target``."""
        if self._target < 0:
            raise ValueError("encrypting needs a target")
        return self.transfer(cipher, first_block, text_size, True)

    def open(self, BlockCipher cipher not None, uint32_t first_block, long long text_size):
        """Decrypt the blocks of the source that hold ``text_size`` bytes of plaintext. Returns and
        raises as ``seal`` does, and also raises AuthenticationError."""
        return self.transfer(cipher, first_block, text_size, False)

    cdef transfer(
        self, BlockCipher cipher, uint32_t first_block, long long text_size, bint sealing
    ):
        cdef Range r
        cdef GcmContext *context
        cdef Outcome outcome
        cdef int error
        cdef long long failed_block = 0
        cdef size_t blocks, room, stride = cipher.block_size + BLOCK_OVERHEAD
        cdef unsigned char *memory
        if text_size < 0:
            raise ValueError(f"a size in bytes cannot be {text_size}")
        blocks = run_blocks(cipher.block_size, text_size, first_block)
        r.batch = <int>min(max(BATCH_SIZE // stride, <size_t>1), <size_t>MAX_BATCH_BLOCKS)
        room = min(r.batch * stride, <size_t>text_size + <size_t>r.batch * BLOCK_OVERHEAD)
        room += HEADER_SIZE
        r.source = self._source
        r.target = self._target
        r.block_size = cipher.block_size
        r.first_block = first_block
        r.text_size = text_size
        r.sealing = sealing
        r.durable = self._durable
        r.write_size = WRITE_SIZE
        if room > WRITE_SIZE and ags1_is_in_memory(self._target):
            r.write_size = WRITE_SIZE_IN_MEMORY
        memory = NULL
        self.enter()
        try:
            if sealing:
                cipher.claim(blocks)
            memory = <unsigned char *>malloc(room)
            if memory == NULL:
                raise MemoryError(f"no memory for {room} bytes of blocks")
            put_header(memory, cipher.block_size)
            r.slots = memory + HEADER_SIZE
            context = cipher.borrow()
            with nogil:
                outcome = transfer(context, &r, &self._stopping, &self._bytes_done, &failed_block)
                error = errno.errno
                # The buffer held plaintext, and free() does not clear it.
                wipe(memory, room)
            cipher.give_back(context)
        finally:
            free(memory)
            self.leave()
        if outcome == READ_FAILED:
            raise OSError(error, os.strerror(error), "source")
        if outcome == WRITE_FAILED:
            raise OSError(error, os.strerror(error), "target")
        if outcome == CUT_SHORT:
            raise TruncatedError("the file became shorter while it was read")
        if outcome == NOT_SEALED:
            raise libcrypto_error("OpenSSL could not encrypt")
        if outcome == NOT_AUTHENTIC:
            raise unauthentic(failed_block, cipher.block_size)
        return outcome == DONE
