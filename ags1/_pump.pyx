"""From file descriptor to file descriptor: a range of blocks, without the GIL.

A batch of blocks is read straight into its slots, sealed or opened where it lies, and written in
one call; the buffer is reused for the whole range. What fails its tag is never written. Knows
nothing of threads or paths: a caller gives each thread its own ``Pump`` and its own range, and may
look at ``bytes_done`` or call ``stop`` meanwhile.
"""

from libc cimport errno
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc
from posix.fcntl cimport F_DUPFD_CLOEXEC, fcntl
from posix.types cimport off_t
from posix.unistd cimport close as close_fd

from ags1._gcm cimport (
    BlockCipher, GcmContext, libcrypto_error, open_run, run_blocks, seal_run, unauthentic, wipe,
)
from ags1.layout cimport BLOCK_OVERHEAD, HEADER_SIZE, NONCE_SIZE
from sys_uio cimport iovec, preadv, pwritev

import os

from .errors import TruncatedError

cdef enum:
    # As many blocks a batch as make about a mebibyte, which stays in the cache.
    BATCH_SIZE = 1 << 20
    MAX_BATCH_BLOCKS = 256

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
    int batch
    unsigned char *slots


cdef ssize_t move(bint writing, int fd, iovec *parts, int count, off_t offset) noexcept nogil:
    """Read or write all of ``parts`` at ``offset``, whatever short counts and signals come.

    Returns the bytes moved, fewer only at the end of a file that is read; or -1 with errno set.
    Uses ``parts`` up.
    """
    cdef ssize_t total = 0, n
    while count:
        if writing:
            n = pwritev(fd, parts, count, offset + total)
        else:
            n = preadv(fd, parts, count, offset + total)
        if n < 0:
            if errno.errno == errno.EINTR:
                continue
            return -1
        if n == 0 and writing:
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


cdef Outcome pump(
    GcmContext *context, const Range *r, volatile bint *stopping, volatile long long *bytes_done,
    long long *failed_block,
) noexcept nogil:
    cdef iovec texts[MAX_BATCH_BLOCKS]
    cdef iovec run
    cdef size_t stride = r.block_size + BLOCK_OVERHEAD
    cdef uint32_t block = r.first_block
    cdef long long left = r.text_size
    cdef off_t text_at, slots_at
    cdef size_t text_size
    cdef ssize_t moved, bad
    cdef int blocks
    while True:
        if stopping[0]:
            return STOPPED
        blocks = 0
        text_size = 0
        while blocks < r.batch and (left > <long long>text_size or blocks == 0):
            texts[blocks].iov_base = r.slots + blocks * stride + NONCE_SIZE
            texts[blocks].iov_len = min(r.block_size, <size_t>left - text_size)
            text_size += texts[blocks].iov_len
            blocks += 1
        run.iov_base = r.slots
        run.iov_len = text_size + <size_t>blocks * BLOCK_OVERHEAD
        text_at = <off_t>block * r.block_size
        slots_at = HEADER_SIZE + <off_t>block * stride

        if r.sealing:
            moved = move(False, r.source, texts, blocks, text_at) if text_size else 0
            if moved != <ssize_t>text_size:
                return READ_FAILED if moved < 0 else CUT_SHORT
            if seal_run(context, r.slots + NONCE_SIZE, stride, r.slots, r.block_size, text_size,
                        block, False):
                return NOT_SEALED
            if move(True, r.target, &run, 1, slots_at) < 0:
                return WRITE_FAILED
        else:
            moved = move(False, r.source, &run, 1, slots_at)
            if moved != <ssize_t>(text_size + <size_t>blocks * BLOCK_OVERHEAD):
                return READ_FAILED if moved < 0 else CUT_SHORT
            bad = open_run(context, r.slots, r.slots + NONCE_SIZE, stride, r.block_size, text_size,
                           block, False)
            if bad >= 0:
                failed_block[0] = block + bad
                return NOT_AUTHENTIC
            if r.target >= 0 and text_size:
                if move(True, r.target, texts, blocks, text_at) < 0:
                    return WRITE_FAILED

        block += blocks
        left -= text_size
        bytes_done[0] += text_size
        if left == 0:
            return DONE


cdef class Pump:
    """One thread's work: to seal, open or verify a range of blocks.

    ``source`` and ``target`` are seekable descriptors, whose positions are neither used nor moved;
    without a target, blocks are only verified.
    """

    cdef volatile long long _bytes_done
    cdef volatile bint _stopping
    cdef int _source
    cdef int _target

    def __cinit__(self):
        self._source = self._target = -1

    def __init__(self, int source, int target=-1):
        # Our own numbers: whatever becomes of our caller's descriptors while a thread is at work,
        # a number used again for another file is never written to.
        self._source = fcntl(source, F_DUPFD_CLOEXEC, 0)
        if self._source < 0:
            raise OSError(errno.errno, os.strerror(errno.errno), "source")
        if target >= 0:
            self._target = fcntl(target, F_DUPFD_CLOEXEC, 0)
            if self._target < 0:
                raise OSError(errno.errno, os.strerror(errno.errno), "target")

    def __dealloc__(self):
        self.close()

    cpdef close(self):
        """Let go of the descriptors. Not while a call is under way."""
        if self._source >= 0:
            close_fd(self._source)
        if self._target >= 0:
            close_fd(self._target)
        self._source = self._target = -1

    @property
    def bytes_done(self):
        """The plaintext bytes dealt with so far."""
        return self._bytes_done

    def stop(self):
        """Make the call under way return False before its next batch."""
        self._stopping = True

    def seal(self, BlockCipher cipher not None, uint32_t first_block, long long text_size):
        """Read ``text_size`` bytes of the source from where block ``first_block`` begins, and write
        them sealed to where they belong in the target.

        Returns False when stopped. Raises TruncatedError when the source ends early, and OSError
        whose ``filename`` is the word ``source`` or ``target``.
        """
        if self._target < 0:
            raise ValueError("sealing needs a target")
        cipher.claim(self.check(cipher, first_block, text_size))
        return self.run(cipher, first_block, text_size, True)

    def open(self, BlockCipher cipher not None, uint32_t first_block, long long text_size):
        """The reverse: read the blocks that hold ``text_size`` bytes, and write them opened.

        Raises AuthenticationError besides.
        """
        self.check(cipher, first_block, text_size)
        return self.run(cipher, first_block, text_size, False)

    cdef size_t check(
        self, BlockCipher cipher, long long first_block, long long text_size
    ) except 0:
        if text_size < 0 or self._source < 0:
            raise ValueError(f"no file has {text_size} bytes")
        return run_blocks(cipher.block_size, text_size, first_block)

    cdef run(self, BlockCipher cipher, uint32_t first_block, long long text_size, bint sealing):
        cdef Range r
        cdef GcmContext *context
        cdef Outcome outcome
        cdef int error
        cdef long long failed_block = 0
        cdef size_t stride = cipher.block_size + BLOCK_OVERHEAD
        r.batch = <int>min(max(BATCH_SIZE // stride, <size_t>1), <size_t>MAX_BATCH_BLOCKS)
        cdef size_t room = min(
            r.batch * stride, <size_t>text_size + <size_t>r.batch * BLOCK_OVERHEAD
        )
        r.source = self._source
        r.target = self._target
        r.block_size = cipher.block_size
        r.first_block = first_block
        r.text_size = text_size
        r.sealing = sealing
        r.slots = <unsigned char *>malloc(room)
        if r.slots == NULL:
            raise MemoryError(f"no memory for {room} bytes of blocks")
        try:
            context = cipher.borrow()
            with nogil:
                outcome = pump(context, &r, &self._stopping, &self._bytes_done, &failed_block)
                error = errno.errno
                # It held plaintext, and the allocator would hand it on as it is.
                wipe(r.slots, room)
            cipher.give_back(context)
        finally:
            free(r.slots)
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
