package ags1.iceberg.kms;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.encryption.EncryptionUtil;
import org.apache.iceberg.encryption.KeyManagementClient;

/**
 * Makes the KMS client that the properties of a catalog name. Iceberg's {@code
 * encryption.kms-type} may also be {@code local}, {@code vault} or {@code memory}, as in Python.
 */
public final class KmsClients {
  private static final String TYPE = CatalogProperties.ENCRYPTION_KMS_TYPE;
  private static final String IMPL = CatalogProperties.ENCRYPTION_KMS_IMPL;
  private static final Map<String, Class<? extends KeyManagementClient>> OURS =
      Map.of("local", LocalKms.class, "vault", VaultKms.class, "memory", MemoryKms.class);

  private KmsClients() {}

  /** Returns the client, which remembers unwrapped keys; null if the properties name none. */
  public static KeyManagementClient of(Map<String, String> properties) {
    Map<String, String> named = withImpl(properties);
    return named.get(TYPE) == null && named.get(IMPL) == null
        ? null
        : new Remembering(EncryptionUtil.createKmsClient(named));
  }

  /** Returns the properties in a form that Iceberg itself understands. */
  private static Map<String, String> withImpl(Map<String, String> properties) {
    String type = properties.get(TYPE);
    Class<?> ours = type == null ? null : OURS.get(type.toLowerCase(Locale.ROOT));
    if (ours == null || properties.get(IMPL) != null) {
      return properties; // Iceberg refuses both at once
    }
    Map<String, String> named = new HashMap<>(properties);
    named.remove(TYPE);
    named.put(IMPL, ours.getName());
    return named;
  }

  /** Refuses a property. Throws IllegalArgumentException. */
  public static void refuseIf(boolean refused, String message, Object... arguments) {
    if (refused) {
      throw new IllegalArgumentException(String.format(message, arguments));
    }
  }

  public static boolean flag(Map<String, String> properties, String name, boolean otherwise) {
    String text = properties.getOrDefault(name, String.valueOf(otherwise)).toLowerCase(Locale.ROOT);
    refuseIf(!text.matches("true|false"), "the property '%s' is not 'true' or 'false'", name);
    return text.equals("true");
  }

  /**
   * Remembers unwrapped keys for an hour at most, as Iceberg's encryption managers do. Each version
   * of a table's metadata has a manager of its own. The keys are not serialized.
   *
   * <p>All threads of a catalog, or of an executor, share it. While one thread asks the KMS for a
   * key, others get the keys that are known.
   */
  private static final class Remembering implements KeyManagementClient {
    private static final long LIFETIME_NS = TimeUnit.HOURS.toNanos(1);

    private final KeyManagementClient inner;
    private transient Known known;

    private record Known(long sinceNs, Map<List<Object>, ByteBuffer> keys) {}

    private Remembering(KeyManagementClient inner) { this.inner = inner; }

    @Override public void initialize(Map<String, String> properties) {} // it is, inside
    @Override public ByteBuffer wrapKey(ByteBuffer key, String id) { return inner.wrapKey(key, id); }

    @Override
    public ByteBuffer unwrapKey(ByteBuffer wrapped, String keyId) {
      List<Object> asked = List.of(keyId, wrapped.duplicate());
      return known().computeIfAbsent(asked, none -> inner.unwrapKey(wrapped.duplicate(), keyId))
          .duplicate();
    }

    private synchronized Map<List<Object>, ByteBuffer> known() {
      long now = System.nanoTime();
      if (known == null || now - known.sinceNs() > LIFETIME_NS) {
        known = new Known(now, new ConcurrentHashMap<>());
      }
      return known.keys();
    }

    @Override public void close() { inner.close(); }
  }
}
