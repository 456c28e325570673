package ags1.iceberg.kms;

import java.nio.ByteBuffer;
import java.security.GeneralSecurityException;
import java.security.SecureRandom;
import javax.crypto.AEADBadTagException;
import javax.crypto.Cipher;
import javax.crypto.spec.GCMParameterSpec;
import javax.crypto.spec.SecretKeySpec;

/** AES-GCM in the form {@code nonce(12) | ciphertext | tag(16)}. */
final class AesGcm {
  private static final int NONCE_SIZE = 12;
  private static final int TAG_SIZE = 16;
  private static final SecureRandom RANDOM = new SecureRandom();

  private AesGcm() {}

  static byte[] seal(byte[] key, byte[] plaintext, byte[] aad) {
    byte[] nonce = new byte[NONCE_SIZE];
    RANDOM.nextBytes(nonce);
    try {
      byte[] sealed = cipher(Cipher.ENCRYPT_MODE, key, nonce, aad).doFinal(plaintext);
      return ByteBuffer.allocate(NONCE_SIZE + sealed.length).put(nonce).put(sealed).array();
    } catch (GeneralSecurityException error) {
      throw new IllegalStateException("AES-GCM is not to be had: " + error.getMessage());
    }
  }

  /** Returns the plaintext; null if the key does not open it, or somebody has changed it. */
  static byte[] open(byte[] key, byte[] sealed, byte[] aad) {
    if (sealed.length < NONCE_SIZE + TAG_SIZE) {
      return null;
    }
    byte[] nonce = java.util.Arrays.copyOf(sealed, NONCE_SIZE);
    try {
      return cipher(Cipher.DECRYPT_MODE, key, nonce, aad)
          .doFinal(sealed, NONCE_SIZE, sealed.length - NONCE_SIZE);
    } catch (AEADBadTagException wrong) {
      return null;
    } catch (GeneralSecurityException error) {
      throw new IllegalStateException("AES-GCM is not to be had: " + error.getMessage());
    }
  }

  private static Cipher cipher(int mode, byte[] key, byte[] nonce, byte[] aad)
      throws GeneralSecurityException {
    Cipher cipher = Cipher.getInstance("AES/GCM/NoPadding");
    cipher.init(mode, new SecretKeySpec(key, "AES"), new GCMParameterSpec(8 * TAG_SIZE, nonce));
    cipher.updateAAD(aad);
    return cipher;
  }

  static byte[] bytes(ByteBuffer buffer) {
    byte[] bytes = new byte[buffer.remaining()];
    buffer.duplicate().get(bytes);
    return bytes;
  }
}
