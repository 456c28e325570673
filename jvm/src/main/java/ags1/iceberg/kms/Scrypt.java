package ags1.iceberg.kms;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.security.GeneralSecurityException;
import java.util.Arrays;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** scrypt (RFC 7914), which neither the JDK nor Spark has. */
public final class Scrypt {
  private Scrypt() {}

  /** Returns {@code size} bytes. Takes 128 * r * n bytes of memory. */
  public static byte[] derive(byte[] passphrase, byte[] salt, int n, int r, int p, int size) {
    int words = 32 * r;
    int[] blocks = new int[p * words];
    ByteBuffer initial = ByteBuffer.wrap(pbkdf2(passphrase, salt, 4 * blocks.length));
    initial.order(ByteOrder.LITTLE_ENDIAN).asIntBuffer().get(blocks);
    int[][] vector = new int[n][];
    for (int i = 0; i < p; i++) {
      int[] x = Arrays.copyOfRange(blocks, i * words, (i + 1) * words);
      for (int j = 0; j < n; j++) {
        vector[j] = x;
        x = mixBlocks(x, r);
      }
      for (int j = 0; j < n; j++) {
        int[] other = vector[x[words - 16] & (n - 1)];
        for (int k = 0; k < words; k++) {
          x[k] ^= other[k];
        }
        x = mixBlocks(x, r);
      }
      System.arraycopy(x, 0, blocks, i * words, words);
    }
    ByteBuffer mixed = ByteBuffer.allocate(4 * blocks.length).order(ByteOrder.LITTLE_ENDIAN);
    mixed.asIntBuffer().put(blocks);
    return pbkdf2(passphrase, mixed.array(), size);
  }

  /** scryptBlockMix: returns the blocks of even number, then the others. */
  private static int[] mixBlocks(int[] input, int r) {
    int[] output = new int[input.length];
    int[] x = Arrays.copyOfRange(input, input.length - 16, input.length);
    for (int i = 0; i < 2 * r; i++) {
      for (int k = 0; k < 16; k++) {
        x[k] ^= input[16 * i + k];
      }
      salsa20of8(x);
      System.arraycopy(x, 0, output, 16 * (i / 2 + (i % 2) * r), 16);
    }
    return output;
  }

  private static void salsa20of8(int[] block) {
    int[] x = block.clone();
    for (int round = 0; round < 4; round++) {
      for (int i = 0; i < 4; i++) { // columns
        quarter(x, 5 * i, (5 * i + 4) % 16, (5 * i + 8) % 16, (5 * i + 12) % 16);
      }
      for (int i = 0; i < 4; i++) { // rows
        quarter(x, 5 * i, 4 * i + (i + 1) % 4, 4 * i + (i + 2) % 4, 4 * i + (i + 3) % 4);
      }
    }
    for (int i = 0; i < 16; i++) {
      block[i] += x[i];
    }
  }

  private static void quarter(int[] x, int a, int b, int c, int d) {
    x[b] ^= Integer.rotateLeft(x[a] + x[d], 7);
    x[c] ^= Integer.rotateLeft(x[b] + x[a], 9);
    x[d] ^= Integer.rotateLeft(x[c] + x[b], 13);
    x[a] ^= Integer.rotateLeft(x[d] + x[c], 18);
  }

  /** PBKDF2-HMAC-SHA-256 of one iteration. The JDK's own takes no bytes that are not text. */
  private static byte[] pbkdf2(byte[] passphrase, byte[] salt, int size) {
    try {
      Mac mac = Mac.getInstance("HmacSHA256");
      // HMAC pads its key with zeros, so that a key of one zero is the empty key.
      byte[] key = passphrase.length == 0 ? new byte[1] : passphrase;
      mac.init(new SecretKeySpec(key, "HmacSHA256"));
      ByteBuffer derived = ByteBuffer.allocate((size + 31) / 32 * 32);
      for (int i = 1; derived.hasRemaining(); i++) {
        mac.update(salt);
        derived.put(mac.doFinal(ByteBuffer.allocate(4).putInt(i).array()));
      }
      return Arrays.copyOf(derived.array(), size);
    } catch (GeneralSecurityException error) {
      throw new IllegalStateException("HMAC-SHA-256 is not to be had: " + error.getMessage());
    }
  }
}
