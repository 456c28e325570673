package ags1.iceberg.kms;

import static ags1.iceberg.kms.KmsClients.refuseIf;
import static java.nio.charset.StandardCharsets.UTF_8;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.apache.iceberg.encryption.Ciphers;
import org.apache.iceberg.encryption.KeyManagementClient;
import org.apache.iceberg.util.ByteBuffers;
import org.json.JSONObject;
import org.json.JSONParserConfiguration;

/**
 * A KMS client with its properties. An empty value counts as none. Those that are secret are not
 * serialized: each process has its own credentials, in a file or in its environment.
 *
 * <p>The threads of a process share a client. {@link #openOnce} sets the fields, and each call begins
 * with it, so every thread sees them. What a subclass changes later, it guards itself.
 */
abstract class Kms implements KeyManagementClient {
  private static final String SECRET =
      "kms\\.local\\.passphrase|kms\\.vault\\.(token|secret-id)|encryption\\.kms\\.key\\..*";

  private final HashMap<String, String> serialized = new HashMap<>();
  private transient Map<String, String> properties;
  private transient boolean isOpen;

  /** Takes and checks the properties; called once in each process. */
  abstract void open();

  abstract byte[] wrap(byte[] key, String keyId);

  abstract byte[] unwrap(byte[] wrapped, String keyId);

  @Override
  public final void initialize(Map<String, String> given) {
    properties = new HashMap<>(given);
    properties.keySet().removeIf(name -> !name.matches("(encryption\\.)?kms\\..*"));
    properties.values().removeIf(value -> value == null || value.isEmpty());
    serialized.putAll(properties);
    serialized.keySet().removeIf(name -> name.matches(SECRET));
    openOnce();
  }

  @Override
  public final ByteBuffer wrapKey(ByteBuffer key, String keyId) {
    openOnce();
    return ByteBuffer.wrap(wrap(ByteBuffers.toByteArray(key), keyId));
  }

  @Override
  public final ByteBuffer unwrapKey(ByteBuffer wrapped, String keyId) {
    openOnce();
    return ByteBuffer.wrap(unwrap(ByteBuffers.toByteArray(wrapped), keyId));
  }

  private synchronized void openOnce() {
    if (!isOpen) {
      properties = Objects.requireNonNullElse(properties, serialized);
      open();
      isOpen = true;
    }
  }

  final String get(String name, String otherwise) {
    return properties.getOrDefault(name, otherwise);
  }

  final boolean flag(String name, boolean otherwise) {
    return KmsClients.flag(properties, name, otherwise);
  }

  final int number(String name, int otherwise, int maximum) {
    String text = get(name, String.valueOf(otherwise));
    refuseIf(
        !text.matches("0*[1-9][0-9]{0,8}") || Integer.parseInt(text) > maximum,
        "the property '%s' is not a number from 1 to %s", name, maximum);
    return Integer.parseInt(text);
  }

  final void refuseBoth(String one, String other) {
    refuseIf(
        get(one, null) != null && get(other, null) != null,
        "both '%s' and '%s' are given: give one", one, other);
  }

  /** Refuses a property that begins with {@code prefix} and is not known: it may be mistyped. */
  final void checkNames(String prefix, List<String> known) {
    for (String name : properties.keySet()) {
      refuseIf(
          name.startsWith(prefix) && !known.contains(name.substring(prefix.length())),
          "the property '%s' is unknown; there are %s with %s", name, prefix, known);
    }
  }

  static JSONObject json(byte[] utf8) {
    String text = new String(utf8, UTF_8);
    return new JSONObject(text, new JSONParserConfiguration().withStrictMode(true));
  }

  /** AES-GCM in the form {@code nonce(12) | ciphertext | tag(16)}. */
  static byte[] seal(byte[] key, byte[] plaintext, byte[] aad) {
    return new Ciphers.AesGcmEncryptor(key).encrypt(plaintext, aad);
  }

  /** Returns the plaintext; null if the key does not open it, or somebody has changed it. */
  static byte[] opened(byte[] key, byte[] sealed, byte[] aad) {
    try {
      return new Ciphers.AesGcmDecryptor(key).decrypt(sealed, aad);
    } catch (RuntimeException refused) {
      return null;
    }
  }
}
