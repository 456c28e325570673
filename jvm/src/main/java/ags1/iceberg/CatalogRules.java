package ags1.iceberg;

import ags1.iceberg.kms.KmsClients;
import java.nio.ByteBuffer;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.encryption.EncryptedKey;
import org.apache.iceberg.encryption.KeyManagementClient;
import org.apache.iceberg.exceptions.ValidationException;

/**
 * The KMS of a catalog, and which tables the catalog accepts. Both are properties of the catalog,
 * with the names and meanings that they have in Python.
 *
 * <p>{@code encryption.trusted-key-ids} lists the master keys that a table may name. Without it, a
 * table may name any. With {@code encryption.require-encrypted=true}, unencrypted tables and
 * unencrypted data files are refused. The master key of a new table wraps something as a trial.
 *
 * <p>The rules never change. All threads and tables of a catalog share them, with the client of the
 * KMS, which is made for that.
 */
public final class CatalogRules {
  private static final String TRUSTED_KEY_IDS = "encryption.trusted-key-ids";
  private static final String REQUIRE_ENCRYPTED = "encryption.require-encrypted";
  private static final String KEY_ID = TableProperties.ENCRYPTION_TABLE_KEY;
  private static final int FORMAT_VERSION = 3;
  private static final String PRUNE_ON_COMMIT = "encryption.keys.prune-on-commit"; // of Python alone
  private static final List<String> OF_ENCRYPTION =
      List.of(KEY_ID, TableProperties.ENCRYPTION_DEK_LENGTH, PRUNE_ON_COMMIT);
  // What an encrypted table may say. In data pages of version 2, Iceberg does not encrypt the levels,
  // which say what values are null.
  private static final Map<String, String> ALLOWED =
      Map.of(
          TableProperties.ENCRYPTION_DEK_LENGTH, "16|24|32",
          PRUNE_ON_COMMIT, "(?i)y|yes|t|true|on|1|n|no|f|false|off|0|",
          TableProperties.DEFAULT_FILE_FORMAT, "(?i)parquet|avro",
          TableProperties.PARQUET_PAGE_VERSION, "(?i)v1",
          TableProperties.DELETE_PARQUET_PAGE_VERSION, "(?i)v1");
  // What follows the timestamp in what a KEK encrypts says what for. Manifest lists have nothing there.
  private static final String TIMESTAMP = "-?[0-9]{1,19}";

  private final List<String> trustedKeyIds;
  private final boolean requireEncrypted;
  private final KeyManagementClient kms;

  /** Takes the properties of a catalog. Throws IllegalArgumentException for wrong ones. */
  public CatalogRules(Map<String, String> properties) {
    for (String name : properties.keySet()) {
      KmsClients.refuseIf(
          isLikeEncryption(name) && !name.startsWith("encryption.kms")
              && !name.equals(TRUSTED_KEY_IDS) && !name.equals(REQUIRE_ENCRYPTED),
          "the catalog property '%s' does not exist: use '%s', '%s' or a property of the KMS, "
              + "'encryption.kms…'", name, TRUSTED_KEY_IDS, REQUIRE_ENCRYPTED);
    }
    requireEncrypted = KmsClients.flag(properties, REQUIRE_ENCRYPTED, false);
    Stream<String> given = Stream.of(properties.getOrDefault(TRUSTED_KEY_IDS, "").split(","));
    trustedKeyIds = given.map(String::strip).filter(id -> !id.isEmpty()).toList();
    kms = KmsClients.of(properties);
  }

  /** Returns {@code operations}, able to read and write encrypted tables under these rules. */
  public TableOperations over(TableOperations operations) {
    return new EncryptedOperations(operations, this);
  }

  boolean requireEncrypted() { return requireEncrypted; }
  KeyManagementClient kms() { return kms; }

  /**
   * Returns the master key of a table, null if the table is unencrypted and may be so. Throws
   * ValidationException if the table is refused.
   */
  String keyId(TableMetadata metadata) {
    String keyId = metadata.properties().get(KEY_ID);
    if (keyId == null) {
      refuseIf(
          requireEncrypted,
          "the table %s is not encrypted: it has no property '%s', and the catalog's '%s' is set",
          metadata.location(), KEY_ID, REQUIRE_ENCRYPTED);
      refuseIf(
          !metadata.encryptionKeys().isEmpty()
              || metadata.snapshots().stream().anyMatch(snapshot -> snapshot.keyId() != null),
          "the table %s has encryption keys, but no property '%s': somebody removed it",
          metadata.location(), KEY_ID);
      return null;
    }
    refuseIf(
        !trustedKeyIds.isEmpty() && !trustedKeyIds.contains(keyId),
        "the table %s names '%s' as its key, which is none of those configured as '%s': add it "
            + "there if you trust it", metadata.location(), keyId, TRUSTED_KEY_IDS);
    refuseIf(
        kms == null,
        "the table %s is encrypted, and the catalog has no KMS: set its property "
            + "'encryption.kms-type' or 'encryption.kms-impl'", metadata.location());
    refuseIf(
        metadata.formatVersion() != FORMAT_VERSION,
        "the table %s is encrypted, and has format version %s: encryption needs version %s",
        metadata.location(), metadata.formatVersion(), FORMAT_VERSION);
    refuseIf(
        List.of(metadata.location().split("/")).contains(".."),
        "the metadata names %s as the table's folder, and '..' may lead out of it",
        metadata.location());
    Set<String> keyIds = new HashSet<>();
    for (EncryptedKey key : metadata.encryptionKeys()) {
      refuseIf(
          !keyIds.add(key.keyId()),
          "two keys of the table %s have the ID %s: somebody changed the metadata",
          metadata.location(), key.keyId());
      String timestamp = key.properties() == null ? null : key.properties().get("KEY_TIMESTAMP");
      refuseIf(
          timestamp != null && !timestamp.matches(TIMESTAMP),
          "the KEY_TIMESTAMP of the key %s of the table %s is not a number: somebody has changed it",
          key.keyId(), metadata.location());
    }
    Set<String> lists = new HashSet<>();
    for (Snapshot snapshot : metadata.snapshots()) {
      refuseIf(
          snapshot.keyId() == null,
          "the snapshot %s of the encrypted table %s has no key-id: somebody removed it, or wrote "
              + "the snapshot unencrypted", snapshot.snapshotId(), metadata.location());
      refuseIf(
          !lists.add(snapshot.manifestListLocation()),
          "two snapshots of the table %s have the manifest list %s: somebody changed the metadata",
          metadata.location(), snapshot.manifestListLocation());
    }
    return keyId;
  }

  /**
   * Checks what a commit sets of a table's properties. {@code before} are those that the table has, and
   * none if it is new here. Returns whether the table is encrypted.
   */
  boolean checkSet(Map<String, String> before, TableMetadata metadata) {
    boolean isEncrypted = keyId(metadata) != null;
    metadata.properties().forEach(
        (name, value) -> {
          if (value.equals(before.get(name))) {
            return;
          }
          refuseIf(
              isLikeEncryption(name) && !isEncrypted,
              "the table would not be encrypted: it has the property '%s' and no '%s'. Add '%s', or "
                  + "remove '%s'", name, KEY_ID, KEY_ID, name);
          refuseIf(
              isLikeEncryption(name) && !OF_ENCRYPTION.contains(name),
              "the table property '%s' does not exist: use %s", name, OF_ENCRYPTION);
          refuseIf(
              isEncrypted && !isAllowed(name, value),
              "the property '%s' of an encrypted table is not '%s'", name, value);
        });
    return isEncrypted;
  }

  /** Returns why no file may be written into an encrypted table, if it is so; otherwise null. */
  static String whyUnwritable(TableMetadata metadata) {
    return metadata.properties().entrySet().stream()
        .filter(each -> !isAllowed(each.getKey(), each.getValue()))
        .map(each -> String.format("the property '%s' is '%s': change it", each.getKey(), each.getValue()))
        .findFirst()
        .orElse(null);
  }

  private static boolean isAllowed(String name, String value) {
    return value.matches(ALLOWED.getOrDefault(name, "(?s).*"));
  }

  /** Checks that the key of a table works which is about to be created. */
  void checkNew(TableMetadata metadata) {
    if (checkSet(Map.of(), metadata)) {
      kms.wrapKey(ByteBuffer.allocate(16), metadata.properties().get(KEY_ID));
    }
  }

  /**
   * Says whether a property has the name of one of encryption, or nearly such a name: only letters
   * count, and capitals are small letters. Python has the same rule.
   */
  private static boolean isLikeEncryption(String name) {
    return name.toLowerCase(Locale.ROOT).replaceAll("[^a-z]", "").startsWith("encryption");
  }

  static void refuseIf(boolean refused, String message, Object... arguments) {
    if (refused) {
      throw new ValidationException(message, arguments);
    }
  }
}
