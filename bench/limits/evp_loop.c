/* The limit: AES-GCM over AGS1 blocks with nothing around it.
 *
 * One kept context; per block a new nonce, the AAD, the updates, final and tag; nonces drawn in
 * batches. A block's text goes to libcrypto in pieces of a given size: some CPUs are twice as fast
 * with smaller pieces than with a whole block. No argument is checked. It is linked against the
 * libcrypto that ags1 itself uses, so that what separates the two is ags1's own work.
 */
#define _GNU_SOURCE
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NONCE 12
#define TAG 16
#define BATCH 256
#define EXPORT __attribute__((visibility("default")))

typedef struct {
    EVP_CIPHER *cipher;
    EVP_CIPHER_CTX *sealing, *opening;
    size_t block_size, piece_size, aad_size;
    unsigned char aad[256];
} evp_loop;

static void number_block(evp_loop *loop, uint32_t number)
{
    unsigned char *at = loop->aad + loop->aad_size - 4;
    at[0] = number;
    at[1] = number >> 8;
    at[2] = number >> 16;
    at[3] = number >> 24;
}

EXPORT const char *evp_loop_version(void)
{
    return OpenSSL_version(OPENSSL_VERSION);
}

EXPORT void evp_loop_free(evp_loop *loop)
{
    if (!loop)
        return;
    EVP_CIPHER_CTX_free(loop->sealing);
    EVP_CIPHER_CTX_free(loop->opening);
    EVP_CIPHER_free(loop->cipher);
    free(loop);
}

EXPORT evp_loop *evp_loop_new(const unsigned char *key, size_t key_size,
                              const unsigned char *aad_prefix, size_t aad_prefix_size,
                              size_t block_size, size_t piece_size)
{
    /* As ags1 does it: no exit handler that could run while a daemon thread still encrypts. */
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
    evp_loop *loop = calloc(1, sizeof *loop);
    if (!loop || aad_prefix_size + 4 > sizeof loop->aad)
        goto failed;
    const char *name = key_size == 16 ? "AES-128-GCM" : key_size == 24 ? "AES-192-GCM" : "AES-256-GCM";
    loop->cipher = EVP_CIPHER_fetch(NULL, name, NULL);
    loop->sealing = EVP_CIPHER_CTX_new();
    loop->opening = EVP_CIPHER_CTX_new();
    loop->block_size = block_size;
    loop->piece_size = piece_size;
    loop->aad_size = aad_prefix_size + 4;
    memcpy(loop->aad, aad_prefix, aad_prefix_size);
    if (!loop->cipher || !loop->sealing || !loop->opening
        || EVP_EncryptInit_ex2(loop->sealing, loop->cipher, key, NULL, NULL) != 1
        || EVP_DecryptInit_ex2(loop->opening, loop->cipher, key, NULL, NULL) != 1)
        goto failed;
    return loop;
failed:
    evp_loop_free(loop);
    return NULL;
}

static int update(evp_loop *loop, EVP_CIPHER_CTX *ctx, unsigned char *out,
                  const unsigned char *in, size_t size)
{
    int n;
    for (size_t at = 0; at < size; at += loop->piece_size) {
        size_t piece = size - at < loop->piece_size ? size - at : loop->piece_size;
        if (EVP_CipherUpdate(ctx, out + at, &n, in + at, (int)piece) != 1)
            return 0;
    }
    return 1;
}

EXPORT int evp_loop_seal(evp_loop *loop, const unsigned char *text, size_t size,
                         unsigned char *slot, int again)
{
    /* again: the first block's text, again and again, into the first slot. */
    unsigned char nonces[BATCH * NONCE];
    EVP_CIPHER_CTX *ctx = loop->sealing;
    int n;
    for (uint32_t number = 0; size; number++) {
        size_t part = size < loop->block_size ? size : loop->block_size;
        size_t blocks_left = (size + loop->block_size - 1) / loop->block_size;
        size_t batch = blocks_left < BATCH ? blocks_left : BATCH;
        if (number % BATCH == 0 && RAND_bytes(nonces, (int)batch * NONCE) != 1)
            return 0;
        memcpy(slot, nonces + number % BATCH * NONCE, NONCE);
        number_block(loop, again ? 0 : number);
        if (EVP_EncryptInit_ex2(ctx, NULL, NULL, slot, NULL) != 1
            || EVP_EncryptUpdate(ctx, NULL, &n, loop->aad, (int)loop->aad_size) != 1
            || !update(loop, ctx, slot + NONCE, text, part)
            || EVP_EncryptFinal_ex(ctx, slot + NONCE + part, &n) != 1
            || EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG, TAG, slot + NONCE + part) != 1)
            return 0;
        size -= part;
        if (!again) {
            text += part;
            slot += NONCE + part + TAG;
        }
    }
    return 1;
}

static int open_slot(evp_loop *loop, uint32_t number, const unsigned char *slot, size_t size,
                     unsigned char *text)
{
    EVP_CIPHER_CTX *ctx = loop->opening;
    int n;
    number_block(loop, number);
    return EVP_DecryptInit_ex2(ctx, NULL, NULL, slot, NULL) == 1
        && EVP_DecryptUpdate(ctx, NULL, &n, loop->aad, (int)loop->aad_size) == 1
        && update(loop, ctx, text, slot + NONCE, size)
        && EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, TAG, (void *)(slot + NONCE + size)) == 1
        && EVP_DecryptFinal_ex(ctx, text + size, &n) == 1;
}

EXPORT int evp_loop_open(evp_loop *loop, const unsigned char *slot, size_t size,
                         unsigned char *text, int again)
{
    /* size: the plaintext's. again: the first slot, again and again. */
    for (uint32_t number = 0; size; number++) {
        size_t part = size < loop->block_size ? size : loop->block_size;
        if (!open_slot(loop, again ? 0 : number, slot, part, text))
            return 0;
        size -= part;
        if (!again) {
            text += part;
            slot += NONCE + part + TAG;
        }
    }
    return 1;
}

EXPORT int evp_loop_open_file(evp_loop *loop, int fd, uint32_t first, size_t size,
                              unsigned char *slot, unsigned char *text, int keep)
{
    /* Blocks from `first` on, `size` bytes of plaintext; `slot` has room for one whole slot.
     * keep: the texts follow each other in `text`; otherwise each is written over the last. */
    off_t at = 8 + (off_t)first * (off_t)(NONCE + loop->block_size + TAG);
    for (uint32_t number = first; size; number++) {
        size_t part = size < loop->block_size ? size : loop->block_size;
        size_t whole = NONCE + part + TAG;
        if (pread(fd, slot, whole, at) != (ssize_t)whole
            || !open_slot(loop, number, slot, part, text))
            return 0;
        if (keep)
            text += part;
        size -= part;
        at += (off_t)whole;
    }
    return 1;
}

EXPORT int evp_loop_messages(evp_loop *loop, const unsigned char *text, size_t size,
                             unsigned char *slot, unsigned char *opened, size_t count)
{
    /* Each message is sealed and opened again, with a nonce drawn for it alone. */
    while (count--)
        if (!evp_loop_seal(loop, text, size, slot, 0)
            || !evp_loop_open(loop, slot, size, opened, 0))
            return 0;
    return 1;
}
