package ags1.iceberg.kms;

import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
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

  /** Returns the client; null if the properties name none. */
  public static KeyManagementClient of(Map<String, String> properties) {
    Map<String, String> named = withImpl(properties);
    return named.get(TYPE) == null && named.get(IMPL) == null
        ? null
        : EncryptionUtil.createKmsClient(named);
  }

  /** Returns the properties in a form that Iceberg itself understands. */
  public static Map<String, String> withImpl(Map<String, String> properties) {
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
}
