"""The faults: what stands in a file, what is put there instead, and what that would mean.

``tests`` are the test files to run, in this order, where those of the file in ``TESTS`` would take
longer; ``equivalent`` is the reason why no test can notice a fault.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    file: str
    old: str
    new: str
    reason: str
    tests: tuple[str, ...] = ()
    equivalent: str = ""


def t(*names: str) -> tuple[str, ...]:
    """Return the test files of each group; ``kms/aws`` is ``tests/kms/test_aws.py``."""
    return tuple(
        " ".join(f"tests/{'/test_'.join(name.rsplit('/', 1))}.py" for name in group.split())
        for group in names
    )


# The quick files first; all that could notice is tried before a fault counts as survived.
TESTS = {
    "_gcm.pyx": t(
        "format/gcm",
        "format/oneshot format/vectors format/key_use",
        "format/bulk format/tamper",
        "format/secrets",
    ),
    "_messages.pyx": t(
        "format/oneshot", "format/gcm format/vectors", "kms/keyring keys/envelope format/key_use"
    ),
    "_columns.pyx": t("format/columns", "format/secrets"),
    "_buffers.pyx": t("format/oneshot format/gcm", "format/stream_reader"),
    "_pump.pyx": t("format/bulk", "format/crash format/interrupts"),
    "_stream.pyx": t("format/stream_reader", "format/stream_writer"),
    "reader.py": t("format/stream_reader", "format/tamper", "format/interrupts"),
    "writer.py": t("format/stream_writer", "format/crash format/interrupts"),
    "geometry.py": t(
        "format/oneshot format/layout",
        "format/stream_reader format/bulk",
        "format/key_use",
        "format/tamper",
    ),
    "_key_metadata.pyx": t("format/key_use format/key_metadata format/columns"),
    "key_metadata.py": t("format/key_metadata", "format/key_use format/oneshot"),
    "keys/envelope.py": t("keys/envelope", "keys/manager", "format/key_use format/secrets"),
    "keys/cache.py": t("format/key_use keys/manager keys/keychain", "keys/envelope"),
    "keys/keychain.py": t("keys/keychain", "cli/files"),
    "keys/manager.py": t("keys/manager", "format/key_use"),
    "iceberg/operations/orphans.py": t("iceberg/operations/orphans"),
    "iceberg/operations/reached_files.py": t("iceberg/operations/orphans"),
    "iceberg/operations/erase.py": t("iceberg/operations/erasure"),
    "iceberg/operations/doctor/__init__.py": t("iceberg/operations/doctor"),
    "iceberg/operations/doctor/content_checks.py": t("iceberg/operations/doctor"),
    "iceberg/operations/doctor/metadata_checks.py": t("iceberg/operations/doctor"),
    "iceberg/operations/compact.py": t("iceberg/operations/compaction"),
    "iceberg/operations/compact_plan.py": t("iceberg/operations/compaction"),
    "iceberg/write/conflicts.py": t("iceberg/write/conflicts iceberg/operations/compaction"),
    "iceberg/write/rolling_writer.py": t("iceberg/operations/compaction"),
    "strict_json.py": t("keys/envelope kms/keyring iceberg/trust"),
    "keys/sidecar.py": t("keys/keychain keys/envelope", "cli/files", "iceberg/trust"),
    "iceberg/commit/aws.py": t("iceberg/commit/aws"),
    "iceberg/commit/glue.py": t("iceberg/commit/aws"),
    "iceberg/commit/dynamodb.py": t("iceberg/commit/aws"),
    "iceberg/commit/sql.py": t("iceberg/commit/pins"),
    "iceberg/steps.py": t("iceberg/operations/pruning"),
    "iceberg/commit/rest.py": t("iceberg/operations/pruning", "iceberg/commit/commits"),
    "iceberg/read/statistics.py": t("iceberg/statistics"),
    "iceberg/write/statistics.py": t("iceberg/statistics"),
    "iceberg/read/changes.py": t("iceberg/read/changes"),
    "iceberg/read/changelog_planning.py": t("iceberg/read/changes"),
}

MUTANTS: list[Mutant] = []


def faults(file: str, *listed: tuple[str, ...]) -> None:
    for old, new, reason, *equivalent in listed:
        MUTANTS.append(Mutant(f"ags1/{file}", old, new, reason, equivalent="".join(equivalent)))


faults(
    "_gcm.pyx",
    (
        "            if not draw(nonces, batch * NONCE_SIZE):\n                break\n",
        "",
        "nonces are whatever lies on the stack",
    ),
    (
        "            nonce = nonces\n            drawn",
        "            OPENSSL_cleanse(nonces, sizeof(nonces))\n            nonce = nonces\n            drawn",
        "a constant nonce",
    ),
    (
        "        nonce += NONCE_SIZE\n",
        "",
        "the blocks of a batch share a nonce",
    ),
    (
        "            nonce = nonces\n            drawn = i",
        "            if nonce == NULL:\n                nonce = nonces\n            drawn = i",
        "nonces of a second batch lie behind the first",
    ),
    (
        "        return kernel_random(out, size)\n",
        "        return 1\n",
        "keys are not drawn",
    ),
    (
        "    if EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, TAG_SIZE, <void *>(sealed + size)) != 1:\n"
        "        return 0\n"
        "    return EVP_DecryptFinal_ex(ctx, text + size, &n) == 1",
        "    return 1",
        "a skipped tag",
    ),
    (
        "    return EVP_DecryptFinal_ex(ctx, text + size, &n) == 1",
        "    EVP_DecryptFinal_ex(ctx, text + size, &n)\n    return 1",
        "a tag that does not verify is taken",
    ),
    (
        "ctx, EVP_CTRL_AEAD_SET_TAG, TAG_SIZE,",
        "ctx, EVP_CTRL_AEAD_SET_TAG, 4,",
        "only four bytes of the tag are compared",
    ),
    (
        "    if aad_size and EVP_DecryptUpdate(ctx, NULL, &n, aad, <int>aad_size) != 1:\n"
        "        return 0\n",
        "",
        "reading leaves the AAD out",
    ),
    (
        "    return not size or EVP_EncryptUpdate(ctx, NULL, &n, aad, <int>size) == 1",
        "    return not size or EVP_EncryptUpdate(ctx, NULL, &n, aad, <int>size - 4) == 1",
        "writing leaves the block number out of the AAD",
    ),
    (
        "            context, context.aad, context.prefix_size + 4, nonce,",
        "            context, context.aad, context.prefix_size, nonce,",
        "a sealed block is not bound to its number",
    ),
    (
        "        put_int32(context.aad + context.prefix_size, first_block + <uint32_t>i)\n"
        "        if not seal_message(",
        "        put_int32(context.aad + context.prefix_size, first_block + <uint32_t>i + 1)\n"
        "        if not seal_message(",
        "sealed block numbers begin at 1",
    ),
    (
        "        put_int32(context.aad + context.prefix_size, first_block + <uint32_t>i)\n"
        "        if not open_message(",
        "        put_int32(context.aad + context.prefix_size, <uint32_t>i)\n"
        "        if not open_message(",
        "opened blocks are numbered from the beginning of the run",
    ),
    (
        "                OPENSSL_cleanse(text, text_size)",
        "                pass",
        "after a refusal the output keeps what was decrypted",
    ),
    (
        "                OPENSSL_cleanse(text - NONCE_SIZE, text_size + blocks * BLOCK_OVERHEAD)",
        "                OPENSSL_cleanse(text, text_size)",
        "after a refusal in place the slots keep some bytes",
    ),
    (
        "                OPENSSL_cleanse(text, text_size)",
        "                OPENSSL_cleanse(text, block_size)",
        "after a refusal only one block of the output is zero",
    ),
    (
        "            forget_errors()\n            return i\n",
        "            return i\n",
        "the error queue keeps a refusal's errors",
        "OpenSSL queues no error when a tag does not verify: the call is for the other failures",
    ),
    (
        "    OPENSSL_cleanse(slots, text_size + blocks * BLOCK_OVERHEAD)\n    return -1",
        "    return -1",
        "when sealing fails the slots keep a plaintext or a nonce",
        "no input makes OpenSSL's encryption fail, only a lack of memory within it",
    ),
    (
        "    return -1\n\n\ncdef Py_ssize_t open_run(",
        "    return 0\n\n\ncdef Py_ssize_t open_run(",
        "a failure to seal is swallowed",
        "no input makes OpenSSL's encryption fail, only a lack of memory within it",
    ),
    (
        "        if is_shared and source != text + done:",
        "        if False:",
        "memory that others can change is read twice",
        "the change has to come within a few instructions: too rare for a test to rely on",
    ),
    (
        "        piece = min(size - done, <size_t>PIECE_SIZE)\n        source",
        "        piece = min(size - done, <size_t>PIECE_SIZE - 1)\n        source",
        "pieces of an odd size",
        "the result is the same, GCM's updates may have any size: only slower",
    ),
    (
        "        source = sealed + done\n",
        "        source = sealed\n",
        "each piece is the first one",
    ),
    (
        "    if not 0 <= number < MAX_BLOCK_COUNT:",
        "    if not 0 <= number <= MAX_BLOCK_COUNT:",
        "one block number too many",
        "run_blocks refuses that number too",
    ),
    (
        "    if first_block + blocks > MAX_BLOCK_COUNT:",
        "    if first_block > MAX_BLOCK_COUNT:",
        "a run goes beyond the last block number",
    ),
    (
        "(rest < BLOCK_OVERHEAD or (rest == BLOCK_OVERHEAD and full))",
        "rest < BLOCK_OVERHEAD",
        "an empty block after full ones is a run",
    ),
    (
        "    if <size_t>dst.len < needed:",
        "    if <size_t>dst.len + 1 < needed:",
        "an output that is one byte short is taken",
    ),
    (
        "    if overlap(src.buf, src.len, dst.buf, needed) and not in_place:",
        "    if False:",
        "input and output may overlap",
    ),
    (
        "    if key_size != 16 and key_size != 24 and key_size != 32:",
        "    if key_size > 32:",
        "keys of any size",
    ),
    (
        "        OPENSSL_cleanse(self._key, sizeof(self._key))\n",
        "",
        "the key stays in memory",
    ),
    (
        "        if not self._process or self._process != this_process():",
        "        if False:",
        "a forked child seals under its parent's key",
    ),
    (
        "self._sealed_blocks, blocks) + blocks > MAX_SEALS_PER_KEY:",
        "self._sealed_blocks, blocks) > MAX_SEALS_PER_KEY:",
        "more seals a key than random nonces allow",
    ),
    (
        "            atomic_add(&self._sealed_blocks, -<uint64_t>blocks)\n",
        "",
        "a refused call uses up a key's blocks",
    ),
    (
        "        self.claim(run_blocks(self.block_size, text_size, first_block))",
        "        run_blocks(self.block_size, text_size, first_block)",
        "sealed blocks are not counted",
    ),
    (
        "        if failed >= 0:\n            raise unauthentic(first + failed, self.block_size)",
        "        if failed > 0:\n            raise unauthentic(first + failed, self.block_size)",
        "a refusal of the first block is swallowed",
    ),
    (
        "            raise unauthentic(first + failed, self.block_size)",
        "            raise unauthentic(failed, self.block_size)",
        "an error names the block's place in the run",
    ),
    (
        '        raise TypeError("a BlockCipher holds a key and cannot be pickled or copied")',
        "        return object.__reduce__(self)",
        "ciphers are pickled",
    ),
    (
        "            idle = atomic_take(&self._idle[i])",
        "            idle = self._idle[i]",
        "two threads share a context",
    ),
    (
        "    memcpy(context.aad, aad_prefix, prefix_size)\n",
        "    if old == NULL:\n        memcpy(context.aad, aad_prefix, prefix_size)\n",
        "a context that is used again keeps the AAD prefix before",
    ),
    (
        "context.ctx, cipher, key, NULL, NULL) != 1:",
        "context.ctx, cipher, key if cipher != NULL else NULL, NULL, NULL) != 1:",
        "a context that is used again keeps the key before",
    ),
)

faults(
    "_messages.pyx",
    (
        "        claim_key(km, reuse_key=reuse_key)\n",
        "",
        "a key that was used seals again",
    ),
    (
        "        wipe(fresh, key_size)\n",
        "",
        "fresh keys stay on the stack",
        "only a look at the stack of a call that has returned would tell",
    ),
    (
        "        wipe(fresh, key_size)\n        first_nonce = fresh + key_size + AAD_PREFIX_SIZE\n",
        "        first_nonce = fresh\n",
        "the nonce is the key's beginning, in the clear",
    ),
    (
        "aad_prefix = PyBytes_FromStringAndSize(<char *>fresh + key_size, AAD_PREFIX_SIZE)",
        "aad_prefix = PyBytes_FromStringAndSize(<char *>fresh, AAD_PREFIX_SIZE)",
        "the AAD prefix is the key's beginning",
    ),
    (
        "        if src.len != length:\n            return None\n",
        "        if src.len < length:\n            return None\n",
        "bytes after the trusted length are taken",
    ),
    (
        "(block_size is not None and stated != block_size)",
        "False",
        "the block size of the header wins over the one that is asked for",
    ),
    (
        "    if file_size < HEADER_SIZE + BLOCK_OVERHEAD or memcmp(at, MAGIC, 4):",
        "    if file_size < HEADER_SIZE + BLOCK_OVERHEAD or memcmp(at, MAGIC, 3):",
        "three letters of the magic do",
    ),
    (
        "    if file_size < HEADER_SIZE + BLOCK_OVERHEAD or memcmp(at, MAGIC, 4):",
        "    if memcmp(at, MAGIC, 4):",
        "a file without a block has one",
    ),
    (
        "    if last and last <= BLOCK_OVERHEAD and slots > BLOCK_OVERHEAD:",
        "    if last and last < BLOCK_OVERHEAD and slots > BLOCK_OVERHEAD:",
        "an empty block ends a file of others",
    ),
    (
        "    if not 1 <= block_size[0] <= max_block_size:",
        "    if not 1 <= block_size[0]:",
        "blocks of any stated size",
    ),
    (
        "    free_context(context)\n    if failed >= 0:\n        raise unauthentic(failed, block_size)",
        "    free_context(context)\n    if failed > 0:\n        raise unauthentic(failed, block_size)",
        "a message whose first block does not verify is returned",
    ),
    (
        "    put_header(at, block_size)\n    return",
        "    put_header(at, 1 << 20)\n    return",
        "every header states 1 MiB",
    ),
    (
        "    return new_key_metadata(KeyMetadata, key, aad_prefix, size)",
        "    return new_key_metadata(KeyMetadata, key, aad_prefix, None)",
        "the key metadata lacks the length",
    ),
    (
        "            if self.failure is None or number < self.failure[0]:\n",
        "            if True:\n",
        "of two failures the last is told",
    ),
    (
        "            if failed >= 0:\n                self.fail(first + failed",
        "            if failed > 0:\n                self.fail(first + failed",
        "a failure of a share's first message is swallowed",
    ),
    (
        "self.fail(first + failed, self.error(share + failed))",
        "self.fail(first, self.error(share + failed))",
        "a failure names another message",
    ),
    (
        "            if fresh != NULL:\n                wipe(fresh, fresh_size)\n",
        "",
        "keys of many messages stay in memory",
        "the buffer is freed: only a look at freed memory would tell",
    ),
    (
        "        message.nonce = fresh + AAD_PREFIX_SIZE\n",
        "        message.nonce = b'0123456789ab'\n",
        "many messages share a nonce",
    ),
    (
        "share + prepared, fresh + prepared * self._fresh_size, first + prepared,",
        "share + prepared, fresh, first + prepared,",
        "the messages of a share have one key",
    ),
    (
        "            if message.view.len == km._file_length:\n",
        "            if True:\n",
        "many messages: a length that is not the trusted one is taken",
    ),
    (
        "        held.append((key, aad_prefix, plaintext))\n",
        "        held.append((key, plaintext))\n",
        "an AAD prefix may be freed before it is used",
        "the key metadata holds it as well, and an empty one is a constant",
    ),
    (
        "                if not ok:\n                    wipe(at, size)\n                    forget_errors()\n",
        "                if not ok:\n                    forget_errors()\n",
        "a refused message stays in memory",
        "its bytes object is freed, and was never returned: only a look at freed memory would tell",
    ),
    (
        "            if size < 0:\n                raise AuthenticationError(",
        "            if size < -1:\n                raise AuthenticationError(",
        "a message one byte too short is read",
    ),
    (
        "                ok = draw(nonce, NONCE_SIZE) and seal_message(",
        "                ok = seal_message(",
        "a wrapped key's nonce is not drawn",
    ),
)

faults(
    "_columns.pyx",
    (
        "        if end < begin or end > data_size:\n",
        "        if end > data_size:\n",
        "offsets of a column may go back",
    ),
    (
        "        if end < begin or end > data_size:\n",
        "        if end < begin:\n",
        "a message may lie beyond its buffer",
    ),
    (
        "                or offset + size > read_int64(sizes + 8 * number)\n",
        "",
        "a view may lie beyond its buffer",
    ),
    (
        "(sizes is not None and size > sizes[number])",
        "False",
        "a buffer may be shorter than the array",
        "pyarrow makes no such array",
    ),
    (
        "                fresh += self._key_size + AAD_PREFIX_SIZE + NONCE_SIZE\n",
        "",
        "the messages of a share have one key",
    ),
    (
        "km.file_length != message.size",
        "km.file_length < message.size",
        "a file may be shorter than its trusted length",
    ),
    (
        "                if (message.size < 0) != (key_metadata._messages[i].size < 0):\n",
        "                if message.size >= 0 and key_metadata._messages[i].size < 0:\n",
        "null files may have key metadata",
    ),
    (
        "                ) >= 0:\n                    break\n",
        "                ) > 0:\n                    break\n",
        "a message whose first block does not verify is returned",
    ),
    (
        "    if memory.is_secret and memory.buffers[2] != NULL:\n",
        "    if False:\n",
        "the plaintexts of a failed call stay in memory",
    ),
    (
        "self._is_large = is_large or size > INT32_MAX",
        "self._is_large = is_large",
        "offsets of 32 bits overflow",
    ),
)

faults(
    "_key_metadata.pyx",
    (
        "return at + 1 == end and not number & 1 and (at[0] or not shift)",
        "return not number & 1 and (at[0] or not shift)",
        "bytes after the key metadata are ignored",
    ),
    (
        "return at + 1 == end and not number & 1 and (at[0] or not shift)",
        "return at + 1 == end and not number & 1",
        "a length may have more bytes than it needs",
    ),
)

faults(
    "_buffers.pyx",
    (
        "    memset(view.buf, 0, view.len)\n",
        "    memset(view.buf, 0, view.len - 1 if view.len else 0)\n",
        "wiping leaves a byte",
    ),
    (
        "            return overlap(first.buf, first.len, second.buf, second.len)",
        "            return False",
        "nothing overlaps",
    ),
    (
        "self._view.len, self._view.readonly, flags)",
        "self._view.len, 0, flags)",
        "memory that is only to be read is written",
    ),
)

faults(
    "_pump.pyx",
    (
        "                continue\n            return -1\n        if n == 0 and writing:",
        "                return -1\n            return -1\n        if n == 0 and writing:",
        "a signal ends a read",
        "signals do not end the reads of a regular file",
    ),
    (
        "        total += n\n        while count",
        "        while count",
        "a short count is read again from its beginning",
    ),
    (
        "            parts.iov_base = <char *>parts.iov_base + n\n",
        "",
        "after a short count memory is filled from its beginning",
        "a regular file gives short counts only at its end, or beyond 2 GiB",
    ),
    (
        "        if moved != <ssize_t>read_size:\n            return READ_FAILED if moved < 0 else CUT_SHORT\n",
        "        if moved < 0:\n            return READ_FAILED\n",
        "a source that became shorter is taken",
        "what was not read does not authenticate, and encrypt_file looks at the size again",
    ),
    (
        "            if bad >= 0:\n                failed_block[0] = block + bad\n                return NOT_AUTHENTIC\n",
        "            if bad > 0:\n                failed_block[0] = block + bad\n                return NOT_AUTHENTIC\n",
        "a refusal of a batch's first block is swallowed",
    ),
    (
        "                failed_block[0] = block + bad\n",
        "                failed_block[0] = bad\n",
        "an error names the block's place in its batch",
    ),
    (
        "                return NOT_SEALED\n        else:",
        "                pass\n        else:",
        "what could not be sealed is written",
        "no input makes OpenSSL's encryption fail, only a lack of memory within it",
    ),
    (
        "                return WRITE_FAILED\n            if r.durable",
        "                pass\n            if r.durable",
        "a write that fails is swallowed",
    ),
    (
        "        block += blocks\n        left",
        "        block += 1\n        left",
        "the second batch has the first one's blocks",
    ),
    (
        "        left -= text_size\n        atomic_add(bytes_done, text_size)",
        "        left -= text_size\n        atomic_add(bytes_done, 1)",
        "progress is not counted in bytes",
    ),
    (
        "    while not atomic_load(stopping):",
        "    while True:",
        "nobody can stop it",
    ),
    (
        "                wipe(r.slots, room)\n",
        "                pass\n",
        "the buffer's plaintext goes to the allocator",
        "the buffer is freed: only a look at freed memory would tell",
    ),
    (
        "                cipher.claim(blocks)\n",
        "                pass\n",
        "blocks of files are not counted, a forked child seals",
    ),
    (
        "HEADER_SIZE + <off_t>block * stride\n",
        "<off_t>block * stride\n",
        "blocks lie where the header is",
    ),
    (
        "        return outcome == DONE",
        "        return True",
        "a stopped run counts as done",
    ),
    (
        "    cdef int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0)",
        "    cdef int copy = fd",
        "the caller's descriptor is used, and closed",
    ),
    (
        "        if atomic_load(&self._closed) or not atomic_join(&self._users):",
        "        if not atomic_join(&self._users):",
        "a closed pump works on",
        "once it is closed and idle nobody can join; a call under way may have another beside it",
    ),
    (
        "    if error in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):",
        "    if error in (errno.EDQUOT, errno.EFBIG):",
        "a full disk is not noticed at once",
    ),
)

faults(
    "geometry.py",
    (
        "        if self.encrypted_size == layout.HEADER_SIZE:\n            return 0\n",
        "",
        "a header alone has a block",
    ),
    (
        "        end = min(layout.block_offset(first + count, self.block_size), self.encrypted_size)",
        "        end = layout.block_offset(first + count, self.block_size)",
        "the last block goes beyond the file",
    ),
    (
        "        return min(begin + count * self.block_size, self.plaintext_size) - begin",
        "        return count * self.block_size",
        "the last block is full",
    ),
    (
        "        if not trust_file_size:\n            raise MissingFileLengthError(",
        "        if False:\n            raise MissingFileLengthError(",
        "the file system's size is trusted unasked",
    ),
    (
        "        if actual_size == layout.HEADER_SIZE:\n",
        "        if False:\n",
        "a file cut to its header is an empty one",
    ),
    (
        "        if actual_size < trusted:",
        "        if actual_size + 1 < trusted:",
        "a file cut by one byte is taken",
    ),
    (
        "        if actual_size > trusted:",
        "        if actual_size > trusted + 1:",
        "a byte may follow the file",
    ),
    (
        "    if trusted < layout.HEADER_SIZE:",
        "    if trusted < 0:",
        "a trusted length shorter than the header",
        "the header is read before, and is refused when it is short",
    ),
    (
        "    if block_size is not None and stated != block_size:",
        "    if False:",
        "another block size than the one asked for",
    ),
    (
        "    if block_size is None and stated > max_block_size:",
        "    if False:",
        "a header may ask for any memory",
    ),
    (
        "    if km.used and not reuse_key:\n",
        "    if False:\n",
        "a used key is not noticed",
    ),
    (
        "    if not km.claim() and not reuse_key:\n",
        "    km.claim()\n    if False:\n",
        "two threads get one key",
    ),
)

faults(
    "_key_metadata.pyx",
    (
        "    self._taken = file_length is not None\n",
        "    self._taken = 0\n",
        "a key with a file length counts as fresh",
    ),
)

faults(
    "key_metadata.py",
    (
        "            if len(key) not in KEY_SIZES:\n",
        "            if not key:\n",
        "keys of any size",
    ),
    (
        "        if not hmac.compare_digest(metadata.to_bytes(), data[:end]):\n",
        "        if False:\n",
        "a cut key metadata is taken",
    ),
    (
        "        if not _are_optional_fields(data[end:]):\n",
        "        if False:\n",
        "anything may follow the key metadata",
    ),
    (
        "        if data[:1] != _VERSION:\n",
        "        if not data:\n",
        "key metadata of any version",
    ),
    (
        "            and self._aad_prefix == other._aad_prefix\n",
        "",
        "key metadata with other AAD prefixes are equal",
    ),
)

faults(
    "keys/envelope.py",
    (
        "        wipe(memoryview(self._key))\n\n    @classmethod",
        "        pass\n\n    @classmethod",
        "a KEK's memory is not wiped",
    ),
    (
        "        if self._process != process_number():",
        "        if False:",
        "a forked child seals under its parent's KEK",
    ),
    (
        "        return self._aad + purpose\n",
        "        return self._aad\n",
        "what is sealed for one purpose opens for another",
    ),
    (
        '_DECIMAL = re.compile(r"-?[0-9]{1,19}")',
        '_DECIMAL = re.compile(r"(?s)-?[0-9].*")',
        "a timestamp makes one purpose of another",
    ),
    (
        "        if purpose[:1].isdigit():\n",
        "        if False:\n",
        "a purpose may continue the timestamp",
    ),
    (
        "        self._aad = _aad(entry)\n",
        "        self._aad = b''\n",
        "seals are not bound to the KEK's timestamp",
    ),
    (
        "        if size not in KEY_SIZES:\n",
        "        if not size:\n",
        "a KEK of any size",
    ),
    (
        "            if len(key_made) != key_size:\n",
        "            if False:\n",
        "the KMS may make a shorter key",
    ),
    (
        "        if not hmac.compare_digest(kms.unwrap_key(wrapped_key, master_key_id), self._key):\n",
        "        if False:\n",
        "what the KMS wrapped is not unwrapped before the old key goes",
    ),
    (
        "_own_name(kms, master_key_id), **kept, **timestamp}",
        "_own_name(kms, master_key_id), **timestamp}",
        "wrapping anew drops unknown properties",
    ),
    (
        "KeyEncryptionKey(rewrapped, self._key, made_here=self.made_here)",
        "KeyEncryptionKey(rewrapped, self._key, made_here=True)",
        "a stored KEK counts as made here once it was wrapped anew",
    ),
    (
        "        if written is not None and proposed is not None and written != proposed:\n",
        "        if False:\n",
        "one of two different timestamps is chosen",
    ),
    (
        "    if len({key.key_id for key in keys}) != len(keys):\n",
        "    if False:\n",
        "two entries may have one id",
    ),
    (
        "encrypted_key_metadata = base64.b64decode(text, validate=True)",
        "encrypted_key_metadata = base64.b64decode(text)",
        "bytes that are not base64 are passed over",
    ),
    (
        "class KeyEncryptionKey(Secret):",
        "class KeyEncryptionKey:",
        "KEKs are pickled",
    ),
)

faults(
    "keys/cache.py",
    (
        "        if now < contents.first_end:\n            return\n",
        "        return\n",
        "a KEK stays in the cache for good",
    ),
    (
        " if end <= now]",
        " if end < now - 1]",
        "a KEK outlives its hour",
    ),
    (
        "        while len(contents.keks) > self._capacity:\n            contents.keks.popitem(last=False)\n",
        "",
        "the cache has no limit",
    ),
    (
        "contents.keks.popitem(last=False)",
        "contents.keks.popitem(last=True)",
        "the newest KEK leaves the cache",
    ),
    (
        "    return (\n        master_key_id,\n        entry.key_id,",
        "    return (\n        '',\n        entry.key_id,",
        "a KEK is had under another master key than was asked for",
    ),
    (
        "        entry.key_id,\n        entry.encrypted_key_metadata,\n",
        "        entry.key_id,\n        b'',\n",
        "an entry that was changed finds the KEK of the one before",
    ),
    (
        "        self._contents.take()\n",
        "        pass\n",
        "the cache does not forget",
    ),
    (
        "            flight.error = error\n            raise\n",
        "            flight.error = error\n",
        "an error of the KMS is swallowed",
    ),
    (
        "os.register_at_fork(after_in_child=_forget_parents)\n",
        "",
        "a forked child has its parent's KEKs",
    ),
    (
        "            if flight.ended.is_set():  # it ended before this call\n",
        "            if False:\n",
        "a failure of the KMS is kept for the next caller",
        "a call removes its flight when it ends, so another call hardly ever gets an ended one",
    ),
)

faults(
    "keys/keychain.py",
    (
        "    return frozenset(key_ids) if accepts_foreign_keys(kms) else None\n",
        "    return None\n",
        "a sidecar may name anybody's master key",
    ),
    (
        "    if trusted_key_ids is not None and entry.encrypted_by_id not in trusted_key_ids:\n",
        "    if False:\n",
        "master keys are not compared with the trusted ones",
    ),
    (
        "            if by is target and known == entry and made.encrypted_by_id == master_key_id:",
        "            if known == entry:",
        "a KEK wrapped for another master key is used again",
    ),
    (
        "            for wrapped in sidecar.file_keys:\n                sidecar.open(self._unwrap, wrapped)\n",
        "",
        "a key that does not open is wrapped anew",
    ),
    (
        "            stream.read(1)\n",
        "            pass\n",
        "the file's first block is not looked at to find its key",
    ),
    (
        "        if error.file is None:\n            error.file = sidecar_file\n",
        "",
        "errors do not name the sidecar",
    ),
)

faults(
    "keys/manager.py",
    (
        "-CLOCK_SKEW_MS <= now - timestamp_ms < KEK_LIFETIME_MS",
        "now - timestamp_ms < KEK_LIFETIME_MS",
        "a KEK from the far future seals",
    ),
    (
        "-CLOCK_SKEW_MS <= now - timestamp_ms < KEK_LIFETIME_MS",
        "-CLOCK_SKEW_MS <= now - timestamp_ms <= KEK_LIFETIME_MS",
        "a KEK seals on its last millisecond",
    ),
    (
        "-CLOCK_SKEW_MS <= now - timestamp_ms < KEK_LIFETIME_MS",
        "-CLOCK_SKEW_MS <= now - timestamp_ms",
        "a KEK seals for ever",
    ),
    (
        "            if entry.encrypted_by_id == self.table_key_id\n            and",
        "            if",
        "a KEK under another master key seals",
    ),
    (
        "            if kek is None or (public and not kek.made_here):\n",
        "            if kek is None:\n",
        "a KEK that anybody may have made seals",
    ),
    (
        "            if kek.key_size >= size:\n",
        "            if True:\n",
        "a KEK weaker than its data keys seals",
    ),
    (
        "        if table_key_id is not None and stated != table_key_id:\n",
        "        if False:\n",
        "the metadata chooses the table's master key",
    ),
    (
        "        if table_key_id is None and accepts_foreign_keys(kms):\n",
        "        if False:\n",
        "the metadata may name a stranger's master key",
    ),
    (
        '        if self._is_kek(entry):\n            raise KeyMetadataError(f"{key_id!r} is a KEK and',
        '        if False:\n            raise KeyMetadataError(f"{key_id!r} is a KEK and',
        "a KEK is taken for a manifest list's key",
    ),
    (
        "        if km.file_length is None:\n",
        "        if False:\n",
        "a manifest list without a length",
    ),
    (
        "        return max(self.data_key_length, size)\n",
        "        return self.data_key_length\n",
        "whoever can write the metadata shortens the data keys",
    ),
    (
        "        for _, entry in () if size else self._keks_by_age():\n",
        "        for entry in self._usable_keks():\n",
        "after its KEK expires, whoever can write the metadata shortens the data keys",
    ),
    (
        "size = max(size, old_kek.key_size, len(km.encryption_key))",
        "size = 0",
        "a rotation wraps keys under a shorter one",
    ),
    (
        "        kek = self._new_kek(sealed_size)\n",
        "        kek = self._new_kek(0)\n",
        "a new KEK wraps a longer key",
    ),
    (
        "        needed.update(self._kek_entry(entry).key_id for entry in live)\n",
        "",
        "pruning drops a KEK that is needed",
    ),
    (
        "            if kek_id not in (entry.key_id, entry.encrypted_by_id)",
        "            if kek_id != entry.key_id",
        "shredding leaves the keys under the KEK",
    ),
    (
        "        if len(self._entries) != len(keys):\n",
        "        if False:\n",
        "two keys of a table have one id",
    ),
    (
        "        if cache is not None and cache.kms is not kms:\n",
        "        if False:\n",
        "a cache of another KMS is used",
    ),
    (
        "            sealed = kek.wrap_key_metadata(km, entry.key_id)\n",
        "            sealed = entry\n",
        "rotation leaves the keys under the old KEK",
    ),
)

faults(
    "strict_json.py",
    (
        "        if len(made) != len(pairs):\n",
        "        if False:\n",
        "of two values with one name, the second one is read",
    ),
)

faults(
    "keys/sidecar.py",
    (
        '_PURPOSE = b"\\0ags1 sidecar"',
        '_PURPOSE = b""',
        "a loose file's key opens as a manifest list's",
    ),
    (
        "        if len(keys) > _MAX_ENTRIES:\n",
        "        if False:\n",
        "a sidecar makes any number of calls to the KMS",
    ),
    (
        "        if not sidecar.file_keys or sidecar.file_keys[0].key_id != sidecar.key_id:\n",
        "        if not sidecar.file_keys:\n",
        "the sidecar's key id may name nothing",
    ),
    (
        "if key.key_id not in known)",
        "if key.key_id)",
        "a merged sidecar has entries twice",
    ),
    (
        "        return tuple(sorted(wrapped, key=lambda key: key.key_id != self.key_id))",
        "        return tuple(wrapped)",
        "an old key is tried first",
    ),
)

faults(
    "_stream.pyx",
    (
        "        if position < self.start or position >= self.start + self.size:",
        "        if position < self.start or position > self.start + self.size:",
        "a byte after the plaintext is read",
        "that many bytes ahead are none: the difference is 0 in either case",
    ),
    (
        "        if position < self.start or position >= self.start + self.size:\n            return 0",
        "        if position >= self.start + self.size:\n            return 0",
        "bytes before the window are read",
    ),
    (
        "        return 0 if self._busy else self.text.ahead(self.position)",
        "        return self.text.ahead(self.position)",
        "a read takes from a window that another thread works on",
    ),
    (
        "        with cython.critical_section(self):\n            self.text = NO_PLAINTEXT\n",
        "        pass\n",
        "what was shown before an error is still served",
    ),
    (
        "            if wanted > 0 and self.window.ahead() >= wanted:\n",
        "            if wanted > 0 and self.window.ahead():\n",
        "a read goes beyond the window",
    ),
    (
        "                self.window.position += size\n                done = True\n        PyBuffer_Release(&view)\n        return size if done else self.core.readinto(buffer)",
        "                done = True\n        PyBuffer_Release(&view)\n        return size if done else self.core.readinto(buffer)",
        "readinto leaves the position",
    ),
    (
        "            if limit < 0 and line < at_hand:",
        "            if limit < 0 and line:",
        "a line ends with the window",
    ),
    (
        "        return size if newline == NULL else newline - at + 1",
        "        return size if newline == NULL else newline - at",
        "a line lacks its newline",
    ),
    (
        "        if offset_overflow or size_overflow < 0 or not self.seeks or not 0 <= position < self.end:",
        "        if offset_overflow or size_overflow < 0 or not self.seeks:",
        "pread takes positions outside the file",
        "the window and the cache hold nothing there, so the slow way is taken all the same",
    ),
    (
        "            if self.window.text.ahead(position) >= wanted:\n                data",
        "            if self.window.text.ahead(position):\n                data",
        "pread goes beyond the window",
    ),
    (
        "                    ):\n                        data = None",
        "                    ):\n                        pass",
        "pread returns memory that was not filled",
    ),
    (
        "            if self._limit and self.find(start, size) is None:",
        "            if self._limit:",
        "the cache keeps a block twice",
        "that takes up room in the cache and changes no result",
    ),
    (
        "                if len(self._texts) > self._limit:\n",
        "                if False:\n",
        "the cache has no limit",
    ),
    (
        "            self._limit = 0\n            self._texts = []\n",
        "            self._limit = 0\n",
        "a closed reader keeps plaintext",
    ),
    (
        "            if text.ahead(position) >= size:\n",
        "            if text.ahead(position):\n",
        "a block that is partly cached counts as cached",
        "keep asks for blocks as a whole, which begin and end alike; the others ask for one byte",
    ),
    (
        "            part = min(size, text.ahead(position))",
        "            part = size",
        "what follows a cached block is copied",
    ),
    (
        "                if i != last:\n                    del self._texts[i]\n                    self._texts.append(text)\n",
        "",
        "the cache drops what is used most",
    ),
    (
        "            if self._block or self._fill:\n                memset(self._buffer.buf, 0, self._buffer.len)\n",
        "",
        "plaintext that was not sealed stays in memory",
        "the buffer is freed: only a look at freed memory would tell",
    ),
    (
        "        return full + self._fill + BLOCK_OVERHEAD if self._fill else full",
        "        return full + self._fill if self._fill else full",
        "the last slot lacks room for its tag",
    ),
    (
        "            and self._block < self._blocks and self._fill + size < self._block_size",
        "            and self._block < self._blocks and self._fill + size <= self._block_size",
        "a write may fill the slot without starting the next one",
        "the next write takes the slow way and starts it, and so does closing",
    ),
    (
        "            not self._busy and self._attached and self._process == this_process()\n",
        "            not self._busy and self._attached\n",
        "a forked child fills its parent's batch",
        "it fills its own copy, which nothing seals: closing and a full batch still raise",
    ),
    (
        "            not self._busy and self._attached and",
        "            self._attached and",
        "a write fills a batch that another thread seals",
    ),
    (
        "                if self._fill == self._block_size:\n                    self._block += 1\n                    self._fill = 0\n",
        "                if self._fill == self._block_size:\n                    self._block += 1\n",
        "a new slot is filled from where the last one ended",
    ),
    (
        "        return self._process != this_process()\n\n    @property\n    def used",
        "        return False\n\n    @property\n    def used",
        "a writer does not know that it was forked",
    ),
    (
        "                self.batch.position += size\n                done = True",
        "                done = True",
        "small writes are not counted in the length",
    ),
    (
        "        if self.core is not None:\n            self.core.drop(self)",
        "        pass",
        "a writer that is dropped leaves its file",
    ),
)

faults(
    "reader.py",
    (
        "                if self._error is not None:\n                    raise copy.copy(self._error)\n",
        "",
        "an error on the way of the position is forgotten",
    ),
    (
        "                self._error = copy.copy(error)\n                self.window.drop()\n",
        "                self._error = copy.copy(error)\n",
        "after an error the window serves on",
    ),
    (
        "                self._error = copy.copy(error)\n                self.window.drop()\n",
        "                self._error = error\n                self.window.drop()\n",
        "a remembered error keeps the frames, and with them buffers",
        "memory is kept for longer, and nothing else changes",
    ),
    (
        "            self.window.busy = True\n",
        "",
        "small reads do not wait for the thread that moves the position",
    ),
    (
        "        lock.check_not_mine()\n        with lock:\n            self.window.busy",
        "        with lock:\n            self.window.busy",
        "a signal handler reads within a read",
    ),
    (
        "        except BaseException:\n            wipe(out)\n            raise",
        "        except BaseException:\n            raise",
        "after an error the caller's buffer keeps some plaintext",
    ),
    (
        '        if offset < 0:\n            raise OSError(errno.EINVAL, f"cannot seek',
        '        if offset < -1:\n            raise OSError(errno.EINVAL, f"cannot seek',
        "a position before the beginning",
    ),
    (
        "            offset += self.plaintext_size\n",
        "            offset += self.encrypted_size\n",
        "the end is the encrypted file's",
    ),
    (
        "        left = self.block_size - self.window.position % self.block_size\n",
        "        left = self.block_size\n",
        "read1 returns more than one block",
    ),
    (
        "        self.window.position = position\n\n    def _ensure_window",
        "        self.window.position = position + 1\n\n    def _ensure_window",
        "a read moves the position too far",
    ),
    (
        "            if count < blocks.threads * blocks.chunk:\n                return 0\n            self._forget_ahead()\n",
        "            if count < blocks.threads * blocks.chunk:\n                return 0\n",
        "what was read ahead is kept although the position has passed it",
        "the queue begins with the block that is wanted, or is forgotten: _take_ahead looks",
    ),
    (
        "        if not ahead or ahead[0][0] != block:\n            self._forget_ahead()\n",
        "",
        "what was read ahead is taken for what is wanted",
    ),
    (
        "        while len(ahead) <= blocks.threads and queued < blocks.geometry.block_count:",
        "        while queued < blocks.geometry.block_count:",
        "the whole file is read ahead",
    ),
    (
        "        self._next_block = block + count\n",
        "        self._next_block = block + count + 1\n",
        "reading onwards is not noticed",
    ),
    (
        "            blocks.give_back(old)\n",
        "            pass\n",
        "buffers are not used again",
        "only slower: each block gets fresh memory",
    ),
    (
        "        old = self.window.put(text, block * self.block_size, size)\n",
        "        old = self.window.put(text, block * self.block_size, size)\n        blocks.give_back(text)\n",
        "the window's buffer is used for other blocks",
    ),
    (
        "        return offset, min(size, self.plaintext_size - offset)",
        "        return offset, size",
        "pread returns bytes after the end",
    ),
    (
        '        if offset < 0 or size < 0:\n            raise ValueError(f"neither',
        '        if size < 0:\n            raise ValueError(f"neither',
        "pread takes a negative offset",
    ),
    (
        "        except (OSError, ValueError):\n            check_open(self)\n            raise\n        return results",
        "        except (OSError, ValueError):\n            check_open(self)\n        return results",
        "an error of the source is swallowed, and memory returned",
    ),
    (
        "                self.closed = True\n                self._forget_ahead()\n                self.window.drop()\n",
        "                self.closed = True\n                self._forget_ahead()\n",
        "a closed reader serves from its window",
    ),
    (
        "            blocks.open_chunk(0, 1, memoryview(bytearray()))\n",
        "            pass\n",
        "an empty file's tag is not checked",
    ),
    (
        "            blocks.source.check_end()\n",
        "            pass\n",
        "bytes after a header alone are not noticed",
    ),
    (
        "                _header(source), source.size, km, block_size, max_block_size, trust_file_size\n",
        "                _header(source), source.size, km, block_size, max_block_size, True\n",
        "the file system's size is trusted unasked",
    ),
    (
        "                _header(source), source.size, km, block_size, max_block_size, trust_file_size\n",
        "                _header(source), source.size, km, None, max_block_size, trust_file_size\n",
        "the block size that is asked for is ignored",
    ),
    (
        "        except Ags1Error as error:\n            source.close()\n",
        "        except Ags1Error as error:\n",
        "a file that is refused stays open",
    ),
)

faults(
    "writer.py",
    (
        "        check_unused(km, reuse_key=reuse_key)\n        core",
        "        core",
        "the target is opened before the key is looked at",
    ),
    (
        "            claim_key(km, reuse_key=reuse_key)\n",
        "            pass\n",
        "two writers get one key",
    ),
    (
        "        if self.batch.forked:\n            raise KeyReuseError(",
        "        if False:\n            raise KeyReuseError(",
        "a forked child writes under its parent's key",
    ),
    (
        "        if self._error is not None:\n            raise copy.copy(self._error)\n",
        "",
        "a stream that failed is written on",
    ),
    (
        "            self._error = _remembered(error)\n",
        "",
        "a failed write is forgotten",
    ),
    (
        "            # Otherwise small writes would still go there without an error.\n            self.batch.drop()\n",
        "",
        "small writes after an error succeed",
    ),
    (
        "        self._next_block += self._chunk\n        self.batch.position",
        "        self.batch.position",
        "two batches have one number of blocks",
    ),
    (
        "self._next_block, self._next_block + self._chunk\n",
        "self._next_block, self._next_block + self._chunk - 1\n",
        "block numbers overlap",
    ),
    (
        "        self.batch.position += text.nbytes\n",
        "",
        "large writes are not counted in the length",
    ),
    (
        "            job.result()\n",
        "",
        "an error in a thread is swallowed",
    ),
    (
        "            self.send(slots[:used])\n            self._slots.give(slots)",
        "            self._slots.give(slots)",
        "a batch that a thread has sealed is not written",
    ),
    (
        "        while len(self._sealing) > leave:\n",
        "        while len(self._sealing) > leave + 1:\n",
        "a batch is left over",
    ),
    (
        "        self._send_sealed(self._threads)\n        self._filling",
        "        self._filling",
        "any number of batches wait to be written",
    ),
    (
        "        if not self.batch.position:\n            empty",
        "        if False:\n            empty",
        "an empty file is a header alone",
    ),
    (
        "        if self.batch.used:\n            self._emit()\n",
        "",
        "the last block is lost",
    ),
    (
        "            self._sink.commit()\n",
        "            pass\n",
        "the file never gets its name",
    ),
    (
        "            if self._sink.published:\n                self._finished",
        "            if True:\n                self._finished",
        "a file that was not published has key metadata",
    ),
    (
        "        if self._aborting:\n            raise Ags1Error(",
        "        if False:\n            raise Ags1Error(",
        "a write goes on although the stream was aborted",
    ),
    (
        "                    self._finish(discard=self._finished is None)\n\n    def _complete",
        "                    self._finish(discard=False)\n\n    def _complete",
        "a file that could not be finished stays",
    ),
    (
        "                if not self.closed:\n                    self._finish(discard=True)",
        "                if not self.closed:\n                    self._finish(discard=False)",
        "an aborted file stays",
    ),
    (
        "            if discard and not forked:\n",
        "            if discard:\n",
        "a forked child removes its parent's file",
    ),
    (
        "            self._sealing.clear()\n            self.batch.drop()\n",
        "            self._sealing.clear()\n",
        "an aborted stream's plaintext stays in memory",
    ),
    (
        "        if kind is None:\n            self.close()\n",
        "        if True:\n            self.close()\n",
        "an exception in the block publishes half a file",
    ),
    (
        "            self.abort()\n            raise\n\n    def seek",
        "            raise\n\n    def seek",
        "a writer that could not be opened leaves its file",
    ),
)

faults(
    "iceberg/operations/orphans.py",
    (
        "                is_old = file.modified_ms is not None and file.modified_ms < self._older_than_ms\n"
        "                (found",
        "                is_old = True\n                (found",
        "files of a commit under way are orphans",
    ),
    (
        "            refresh()\n            self.reached.add_version(table.view(), table.metadata_location)\n",
        "            refresh()\n",
        "files that were committed during the search are orphans",
    ),
    (
        "            self._pending.append(file.location)\n",
        "            pass\n",
        "files of a version that becomes current later are orphans",
    ),
)
faults(
    "iceberg/operations/reached_files.py",
    (
        "            if may_be_missing:\n",
        "            if True:\n",
        "what a missing manifest lists is an orphan",
    ),
)
faults(
    "iceberg/operations/erase.py",
    (
        "forgets_removed=any(map(lists_removed_files, view.manifests))",
        "forgets_removed=False",
        "manifests keep the bounds of removed files",
    ),
    (
        "            if is_older and not is_seen and self._read(location) is not None:\n",
        "            if is_older and not is_seen and (read := self._read(location)) is not None:\n"
        "                self._merge(read)\n",
        "the files of a commit that is tried again are deleted",
    ),
    (
        "        if failed:\n            return tuple(deleted), failed\n",
        "",
        "what names an undeleted file is deleted before it",
    ),
)
faults(
    "iceberg/operations/compact.py",
    (
        "        number = None if start is None else start.sequence_number\n",
        "        number = None\n",
        "equality deletes that others commit meanwhile do not apply to the new files",
    ),
    (
        "        if conflict is not None:\n            raise ConflictError(conflict)\n",
        "",
        "rows that others deleted meanwhile come back",
    ),
    (
        "                if name not in gone:\n",
        "                if False:\n",
        "deletes of files that stay are removed",
    ),
    (
        "            _check_rows(group, [",
        "            list([",
        "lost rows are committed",
    ),
)
faults(
    "iceberg/write/conflicts.py",
    (
        "    changes_spec = any(entry.file.spec_id != new_spec_id for entry in rewritten)\n",
        "    changes_spec = False\n",
        "an equality delete of the new spec deletes rows to which it did not apply",
    ),
)
faults(
    "iceberg/write/rolling_writer.py",
    (
        "            self._file.is_sorted = False  # earlier rows may be greater\n",
        "            pass\n",
        "a file of several sorted runs is called sorted",
    ),
)
faults(
    "iceberg/steps.py",
    (
        "            self._add(change.updates, unmoved_refs(self.committed.metadata), change.manager)",
        "            self._add(change.updates, change.requirements, change.manager)",
        "a commit that prunes requires refs where its own steps have moved them",
    ),
)
faults(
    "iceberg/commit/rest.py",
    (
        "                again = [*_replacing(metadata, lost), *restore(metadata, removed)]",
        "                again = [*_replacing(metadata, lost)]",
        "a pruned key that another writer's snapshot needs stays lost",
    ),
)
faults(
    "iceberg/commit/glue.py",
    (
        '                VersionId=entry["VersionId"],\n',
        "",
        "a commit replaces that of another writer without a word",
    ),
)
faults(
    "iceberg/commit/dynamodb.py",
    (
        "                ConditionExpression=_IS_BASE,\n",
        '                ConditionExpression="#location = #location OR :base = :base",\n',
        "an update has no condition",
    ),
)
faults(
    "iceberg/commit/sql.py",
    (
        "                if changed:\n                    self._pin(session, base.identifier, staged)\n",
        "",
        "a commit leaves the pins of the one before",
    ),
    (
        "                move_pins(self.catalog, session, base.identifier, name)\n",
        "                pass\n",
        "a table that is renamed loses its pins",
    ),
)
faults(
    "iceberg/read/changes.py",
    (
        "    chosen = (positions > np.repeat(zeros, lengths)) & (",
        "    chosen = (positions >= 0) & (",
        "a row that came, went and came back is a change of the first time",
    ),
    (
        "        return of_columns(self.row_filter, names, case_sensitive=self.case_sensitive)\n",
        "        return self.row_filter\n",
        "a filter makes an update an insert",
    ),
    (
        "        if first != len(is_change):\n            raise _changed(groups[-1])",
        "        if False:\n            raise _changed(groups[-1])",
        "a file that has lost rows between two reads is read",
    ),
)

faults(
    "iceberg/read/changelog_planning.py",
    (
        "entry.status != DELETED if not is_own else entry.status != ADDED",
        "entry.status != DELETED",
        "rows that a snapshot deletes are not there before it",
    ),
    (
        "            if removed_by:\n",
        "            if removed_by and kind == DELETE:\n",
        "rows whose deletion is taken back are not inserted",
    ),
)

faults(
    "iceberg/read/statistics.py",
    (
        "    elif allow_plaintext:\n",
        "    elif True:\n",
        "unencrypted statistics are taken for authentic ones",
    ),
    (
        "    if found != stated:\n",
        "    if False:\n",
        "statistics that the metadata does not describe are read",
    ),
)

faults(
    "iceberg/write/statistics.py",
    (
        "            *key_updates(manager, key_id),\n",
        "",
        "the key of statistics is not committed with them",
    ),
)

faults(
    "iceberg/operations/doctor/content_checks.py",
    (
        "        deletes = any(hiding.values()) or any(map(",
        "        deletes = any(hiding.values()) and any(map(",
        "rows deleted by copy-on-write are not told",
    ),
    (
        '        ids -= {ref["snapshot-id"] for ref in refs.values() if _is_branch(ref)}\n',
        '        ids -= {ref["snapshot-id"] for ref in refs.values()}\n',
        "plaintext manifests that only a tag keeps are not told",
    ),
)

faults(
    "iceberg/operations/doctor/metadata_checks.py",
    (
        "    chosen = sorted(snapshot_ids - heads)\n",
        "    chosen = sorted(snapshot_ids)\n",
        "the command names a snapshot that cannot be expired",
    ),
)

faults(
    "iceberg/operations/doctor/__init__.py",
    (
        "            reason = reason or error.message\n        else:\n            return None\n",
        "            reason = None\n        else:\n            return None\n",
        "a KMS that refuses is found out by every file",
    ),
)
