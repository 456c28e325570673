package ags1.iceberg;

import ags1.iceberg.kms.KmsClients;
import ags1.iceberg.kms.KmsException;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.UpdateProperties;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.encryption.EncryptingFileIO;
import org.apache.iceberg.encryption.NativeEncryptionInputFile;
import org.apache.iceberg.exceptions.ValidationException;
import org.apache.iceberg.io.IOUtil;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.SeekableInputStream;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.iceberg.types.Types;

/** What the plug-in makes of the rows of tests/vectors/rules: a method for each file. */
final class Rules {
  private static final String KEY = "30313233343536373839303132333435";
  private static final Map<String, String> KMS =
      Map.of("encryption.kms-type", "memory", "encryption.kms.key.default", KEY);
  private static final Schema SCHEMA =
      new Schema(Types.NestedField.optional(1, "price", Types.LongType.get()));
  private static final Namespace NAMESPACE = Namespace.of("db");
  private static final ObjectMapper JSON = new ObjectMapper();
  private static EncryptedJdbcCatalog catalog;
  private static EncryptingFileIO files;

  private Rules() {}

  /** Decides a row; a refusal is an exception that says why. */
  static Object decide(JsonNode arguments) throws Exception {
    JsonNode given = arguments.get("given");
    try {
      return switch (arguments.get("rule").asText()) {
        case "new_table" -> newTable(given, arguments.get("folder").asText());
        case "set_properties" -> setProperties(given, arguments.get("folder").asText());
        case "key_timestamps" -> keyTimestamp(given.asText());
        case "encrypted_parquet" -> encryptedParquet(given, arguments.get("folder").asText());
        case "table_metadata" -> tableMetadata(given.asText());
        case "vault_urls" -> vaultUrl(given.asText());
        default -> throw new AssertionError("a rule without a runner");
      };
    } catch (ValidationException
        | IllegalArgumentException
        | UncheckedIOException
        | KmsException refused) {
      return "refused";
    }
  }

  private static String newTable(JsonNode properties, String folder) {
    return created(map(properties), folder).properties().containsKey("encryption.key-id")
        ? "encrypted"
        : "plaintext";
  }

  private static String setProperties(JsonNode given, String folder) {
    UpdateProperties update = created(map(given.get("before")), folder).updateProperties();
    map(given.get("set")).forEach(update::set);
    update.commit();
    return "changed";
  }

  private static String keyTimestamp(String text) throws IOException {
    Map<String, String> properties = Map.of("format-version", "3", "encryption.key-id", "default");
    TableMetadata plain =
        TableMetadata.newTableMetadata(
            SCHEMA, PartitionSpec.unpartitioned(), "file:/tmp/rules", properties);
    Map<String, Object> kek =
        Map.of(
            "key-id", "k", "encrypted-key-metadata", "AAAA", "encrypted-by-id", "default",
            "properties", Map.of("KEY_TIMESTAMP", text));
    String metadata = TableMetadataParser.toJson(plain);
    metadata = metadata.substring(0, metadata.length() - 1);
    metadata += ",\"encryption-keys\":" + JSON.writeValueAsString(List.of(kek)) + "}";
    new CatalogRules(KMS).keyId(TableMetadataParser.fromJson(metadata));
    return "opened";
  }

  private static String tableMetadata(String text) {
    String keyId = new CatalogRules(KMS).keyId(TableMetadataParser.fromJson(text));
    return keyId == null ? "plaintext" : "encrypted";
  }

  private static String vaultUrl(String url) {
    KmsClients.of(
        Map.of("encryption.kms-type", "vault", "kms.vault.url", url, "kms.vault.token", "t"));
    return "accepted";
  }

  private static String encryptedParquet(JsonNode given, String folder)
      throws IOException {
    String footer = "1c000000" + "00".repeat(28);
    String hex = given.get("crypto_metadata").asText() + footer + given.path("behind").asText();
    byte[] end = HexFormat.of().parseHex(hex);
    ByteArrayOutputStream file = new ByteArrayOutputStream();
    file.writeBytes(given.path("head").asText("PARE").getBytes());
    file.writeBytes(end);
    file.writeBytes(new byte[] {(byte) end.length, 0, 0, 0});
    file.writeBytes(given.path("end").asText("PARE").getBytes());
    Path path = Files.write(Path.of(folder, "file.parquet"), file.toByteArray());
    if (files == null) {
      files = (EncryptingFileIO) created(Map.of("encryption.key-id", "default"), folder).io();
    }
    ByteBuffer key = files.newEncryptingOutputFile("file:" + path).keyMetadata().buffer();
    InputFile opened = files.newDecryptingInputFile("file:" + path, key);
    InputFile stored = ((NativeEncryptionInputFile) opened).encryptedInputFile();
    try (SeekableInputStream stream = stored.newStream()) {
      stream.seek(file.size() - 8); // as Parquet's reader does first
      IOUtil.readFully(stream, new byte[8], 0, 8);
    }
    return "accepted";
  }

  private static Table created(Map<String, String> properties, String folder) {
    if (catalog == null) {
      catalog = new EncryptedJdbcCatalog();
      catalog.setConf(new Configuration());
      Map<String, String> given = new HashMap<>(KMS);
      given.put("uri", "jdbc:sqlite:" + folder + "/rules.db");
      given.put("warehouse", "file:" + folder);
      catalog.initialize("rules", given);
      catalog.createNamespace(NAMESPACE);
    }
    Map<String, String> all = new HashMap<>(Map.of("format-version", "3"));
    all.putAll(properties);
    TableIdentifier name = TableIdentifier.of(NAMESPACE, UUID.randomUUID().toString());
    return catalog.buildTable(name, SCHEMA).withProperties(all).create();
  }

  private static Map<String, String> map(JsonNode object) {
    Map<String, String> map = new HashMap<>();
    object.fields().forEachRemaining(one -> map.put(one.getKey(), one.getValue().asText()));
    return map;
  }
}
