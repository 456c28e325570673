package ags1.iceberg.kms;

import java.util.HexFormat;

/**
 * A KMS for tests. Its master keys are the properties {@code encryption.kms.key.<id>}, in hex. A
 * wrapped key is {@code nonce(12) | ciphertext | tag(16)}, AES-GCM without additional data. Threads
 * may share it.
 */
public final class MemoryKms extends Kms {
  private static final String PREFIX = "encryption.kms.key.";

  @Override void open() {}

  @Override byte[] wrap(byte[] key, String keyId) { return seal(masterKey(keyId), key, null); }

  @Override
  byte[] unwrap(byte[] wrapped, String keyId) {
    byte[] key = opened(masterKey(keyId), wrapped, null);
    KmsException.when(key == null, "the master key '%s' does not open the wrapped key", keyId);
    return key;
  }

  private byte[] masterKey(String keyId) {
    String text = get(PREFIX + keyId, "");
    if (!text.matches("(?i)[0-9a-f]{32}|[0-9a-f]{48}|[0-9a-f]{64}")) {
      throw new KmsException(
          "no master key '%s': the property '%s' must be 16, 24 or 32 bytes in hex",
          keyId, PREFIX + keyId);
    }
    return HexFormat.of().parseHex(text);
  }
}
