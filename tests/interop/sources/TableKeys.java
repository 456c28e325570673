package org.apache.iceberg.encryption;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.EncryptedKeyParser;
import org.apache.iceberg.ManifestListFile;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.util.ByteBuffers;

/**
 * A table's keys, as Java's StandardEncryptionManager handles them.
 *
 * <p>Every request brings all it needs: {@code keys} (each entry of encryption-keys, as JSON text),
 * {@code table_key_id}, {@code data_key_length} and {@code kms} (catalog properties).
 */
public final class TableKeys {
  private TableKeys() {}

  /** Parses each entry and prints it again. */
  static Object reprint(JsonNode arguments) {
    return print(parse(arguments));
  }

  /** Unwraps the key metadata {@code key_ids} of manifest lists; in hex, by id. */
  static Object open(JsonNode arguments) throws Exception {
    Map<String, String> opened = new LinkedHashMap<>();
    try (KeyManagementClient kms = kms(arguments)) {
      StandardEncryptionManager manager = manager(arguments, kms);
      for (JsonNode keyId : arguments.get("key_ids")) {
        ByteBuffer metadata =
            EncryptionUtil.decryptManifestListKeyMetadata(list(keyId.asText()), manager);
        opened.put(keyId.asText(), HexFormat.of().formatHex(ByteBuffers.toByteArray(metadata)));
      }
    }
    return opened;
  }

  /**
   * Adds {@code key_metadata} (hex) of a manifest list, {@code later_ms} in the future; returns its
   * id, that of the KEK which Java took, and all entries.
   */
  static Object add(JsonNode arguments) throws Exception {
    try (KeyManagementClient kms = kms(arguments)) {
      StandardEncryptionManager manager = manager(arguments, kms);
      manager.setTestTimeShift(arguments.get("later_ms").asLong());
      byte[] metadata = HexFormat.of().parseHex(arguments.get("key_metadata").asText());
      String keyId =
          manager.addManifestListKeyMetadata(StandardKeyMetadata.parse(ByteBuffer.wrap(metadata)));
      Map<String, EncryptedKey> keys = manager.encryptionKeys();
      return Map.of(
          "key_id", keyId, "kek_id", keys.get(keyId).encryptedById(), "keys", print(keys.values()));
    }
  }

  private static StandardEncryptionManager manager(JsonNode arguments, KeyManagementClient kms) {
    Map<String, String> properties =
        Map.of(
            TableProperties.ENCRYPTION_TABLE_KEY, arguments.get("table_key_id").asText(),
            TableProperties.ENCRYPTION_DEK_LENGTH, arguments.get("data_key_length").asText());
    return (StandardEncryptionManager)
        EncryptionUtil.createEncryptionManager(parse(arguments), properties, kms);
  }

  private static KeyManagementClient kms(JsonNode arguments) {
    Map<String, String> properties = new LinkedHashMap<>();
    arguments
        .get("kms")
        .fields()
        .forEachRemaining(entry -> properties.put(entry.getKey(), entry.getValue().asText()));
    return EncryptionUtil.createKmsClient(properties);
  }

  private static List<EncryptedKey> parse(JsonNode arguments) {
    List<EncryptedKey> keys = new ArrayList<>();
    arguments.get("keys").forEach(text -> keys.add(EncryptedKeyParser.fromJson(text.asText())));
    return keys;
  }

  private static List<String> print(Collection<EncryptedKey> keys) {
    return keys.stream().map(key -> EncryptedKeyParser.toJson(key, false)).toList();
  }

  private static ManifestListFile list(String keyId) {
    return new ManifestListFile() {
      @Override
      public String location() {
        return "a manifest list";
      }

      @Override
      public String encryptionKeyID() {
        return keyId;
      }

      @Override
      public ByteBuffer decryptKeyMetadata(EncryptionManager manager) {
        return EncryptionUtil.decryptManifestListKeyMetadata(this, manager);
      }
    };
  }
}
