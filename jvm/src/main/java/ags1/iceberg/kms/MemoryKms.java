package ags1.iceberg.kms;

import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.Map;
import org.apache.iceberg.encryption.KeyManagementClient;

/**
 * A KMS for tests. Its master keys are the properties {@code encryption.kms.key.<id>}, in hex. A
 * wrapped key is {@code nonce(12) | ciphertext | tag(16)}, AES-GCM without additional data.
 */
public final class MemoryKms implements KeyManagementClient {
  private static final String PREFIX = "encryption.kms.key.";

  private KmsProperties properties;

  @Override
  public void initialize(Map<String, String> given) {
    properties = new KmsProperties(given);
    if (given.keySet().stream().noneMatch(name -> name.startsWith(PREFIX))) {
      throw new IllegalArgumentException("no master key: set the property '" + PREFIX + "<id>'");
    }
  }

  @Override
  public ByteBuffer wrapKey(ByteBuffer key, String keyId) {
    return ByteBuffer.wrap(AesGcm.seal(masterKey(keyId), AesGcm.bytes(key), new byte[0]));
  }

  @Override
  public ByteBuffer unwrapKey(ByteBuffer wrapped, String keyId) {
    byte[] key = AesGcm.open(masterKey(keyId), AesGcm.bytes(wrapped), new byte[0]);
    if (key == null) {
      throw new KmsException("the master key '%s' does not open the wrapped key", keyId);
    }
    return ByteBuffer.wrap(key);
  }

  private byte[] masterKey(String keyId) {
    String text = properties.get(PREFIX + keyId, "");
    if (!text.matches("(?i)[0-9a-f]{32}|[0-9a-f]{48}|[0-9a-f]{64}")) {
      throw new KmsException(
          "no master key '%s': the property '%s' must be 16, 24 or 32 bytes in hex",
          keyId, PREFIX + keyId);
    }
    return HexFormat.of().parseHex(text);
  }
}
