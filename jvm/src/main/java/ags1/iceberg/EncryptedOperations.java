package ags1.iceberg;

import static ags1.iceberg.CatalogRules.refuseIf;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.StreamSupport;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.ManifestContent;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.ManifestReader;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotChanges;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.encryption.EncryptedFiles;
import org.apache.iceberg.encryption.EncryptedInputFile;
import org.apache.iceberg.encryption.EncryptedKey;
import org.apache.iceberg.encryption.EncryptingFileIO;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.encryption.EncryptionUtil;
import org.apache.iceberg.encryption.KeyManagementClient;
import org.apache.iceberg.encryption.NativeEncryptionInputFile;
import org.apache.iceberg.encryption.PlaintextEncryptionManager;
import org.apache.iceberg.encryption.StandardEncryptionManager;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;

/**
 * The operations of a table in any catalog, with encryption. A table without a key ID works as it
 * does in {@code inner}.
 *
 * <p>Each version of the metadata has one immutable {@link State}. Its keys are those of the
 * version, and those that were made here and are not committed yet. A commit adds the keys that its
 * new snapshots need. If it added all, keys that somebody removed meanwhile would come back.
 */
final class EncryptedOperations extends DelegatingOperations {
  private final CatalogRules rules;
  private final FileIO storedFiles;
  private final State noTable;
  private volatile State state;

  private record State(TableMetadata metadata, EncryptionManager manager, FileIO io) {
    boolean isEncrypted() { return manager instanceof CheckingManager; }

    Map<String, EncryptedKey> uncommitted() {
      Map<String, EncryptedKey> made =
          new HashMap<>(isEncrypted() ? EncryptionUtil.encryptionKeys(manager) : Map.of());
      if (metadata != null) {
        metadata.encryptionKeys().forEach(key -> made.remove(key.keyId()));
      }
      return made;
    }
  }

  EncryptedOperations(TableOperations inner, CatalogRules rules) {
    super(inner);
    this.rules = rules;
    // Asked first, while Hive's operations do not know a key: then it would encrypt.
    this.storedFiles = inner.io();
    this.noTable = unencrypted(null);
    this.state = noTable;
  }

  @Override public TableMetadata current() { return stateOf(inner.current()).metadata(); }
  @Override public TableMetadata refresh() { return stateOf(inner.refresh()).metadata(); }
  @Override public FileIO io() { return state.io(); }
  @Override public EncryptionManager encryption() { return state.manager(); }

  @Override
  public void commit(TableMetadata base, TableMetadata metadata) {
    checkKeyId(base, metadata);
    if (base == null && metadata.snapshots().isEmpty()) {
      begin(metadata); // the new table may be asked for its files before it is read again
    }
    inner.commit(base, withKeys(base, metadata));
  }

  /**
   * Returns operations for metadata that is not committed yet. Their keys are always those of the
   * live state: a transaction may read again after another writer has committed.
   */
  @Override
  public TableOperations temp(TableMetadata uncommitted) {
    TableMetadata base = current();
    checkKeyId(base, uncommitted);
    if (base == null) {
      begin(uncommitted);
    }
    EncryptedOperations live = this;
    return new DelegatingOperations(inner.temp(uncommitted)) {
      @Override public TableMetadata current() { return uncommitted; }
      @Override public FileIO io() { return live.io(); }
      @Override public EncryptionManager encryption() { return live.encryption(); }
    };
  }

  private synchronized State stateOf(TableMetadata metadata) {
    if (metadata != state.metadata()) {
      state = metadata == null ? noTable : stateOf(metadata, state.uncommitted());
    }
    return state;
  }

  /** Starts a table that will be created: its files are encrypted before its first commit. */
  private synchronized void begin(TableMetadata uncommitted) {
    if (!state.isEncrypted()) {
      rules.checkNew(uncommitted);
      State begun = stateOf(uncommitted, Map.of());
      state = new State(null, begun.manager(), begun.io());
    }
  }

  private State unencrypted(TableMetadata metadata) {
    return new State(metadata, PlaintextEncryptionManager.instance(), storedFiles);
  }

  private State stateOf(TableMetadata metadata, Map<String, EncryptedKey> uncommitted) {
    String keyId = rules.keyId(metadata);
    if (keyId == null) {
      return unencrypted(metadata);
    }
    Map<String, EncryptedKey> keys = new LinkedHashMap<>();
    metadata.encryptionKeys().forEach(key -> keys.put(key.keyId(), key));
    uncommitted.forEach(keys::putIfAbsent);
    int dataKeyLength =
        metadata.propertyAsInt(
            TableProperties.ENCRYPTION_DEK_LENGTH, TableProperties.ENCRYPTION_DEK_LENGTH_DEFAULT);
    List<EncryptedKey> known = List.copyOf(keys.values());
    CheckingManager manager = new CheckingManager(known, keyId, dataKeyLength, rules.kms());
    FileIO guarded = GuardedFileIO.around(storedFiles, rules.requireEncrypted());
    return new State(metadata, manager, EncryptingFileIO.combine(guarded, manager));
  }

  private void checkKeyId(TableMetadata base, TableMetadata metadata) {
    String name = TableProperties.ENCRYPTION_TABLE_KEY;
    String before = base == null ? null : base.properties().get(name);
    refuseIf(
        base != null && !Objects.equals(before, metadata.properties().get(name)),
        "the property '%s' of an existing table is not added, changed or removed: it is %s",
        name, before);
    rules.checkSet(base == null ? Map.of() : base.properties(), metadata);
  }

  /** Returns the metadata with the keys of its new snapshots, after a check of these snapshots. */
  private TableMetadata withKeys(TableMetadata base, TableMetadata metadata) {
    // Of metadata from a file, to register a table, the guard checks what is read.
    if (rules.keyId(metadata) == null || metadata.metadataFileLocation() != null) {
      return metadata;
    }
    State committing = stateOf(metadata, state.uncommitted());
    TableMetadata.Builder builder = TableMetadata.buildFrom(metadata); // adds no key twice
    Map<String, EncryptedKey> keys = EncryptionUtil.encryptionKeys(committing.manager());
    for (Snapshot snapshot : metadata.snapshots()) {
      if (base != null && base.snapshot(snapshot.snapshotId()) != null) {
        continue;
      }
      EncryptedKey listKey = keys.get(snapshot.keyId());
      refuseIf(
          listKey == null || !keys.containsKey(listKey.encryptedById()),
          "the key %s of the new snapshot %s is unknown", snapshot.keyId(), snapshot.snapshotId());
      builder.addEncryptionKey(keys.get(listKey.encryptedById())).addEncryptionKey(listKey);
      for (ManifestFile manifest : snapshot.allManifests(committing.io())) {
        refuseIf(
            manifest.keyMetadata() == null,
            "the manifest %s of the new snapshot %s is not encrypted",
            manifest.path(), snapshot.snapshotId());
        if (manifest.snapshotId() == snapshot.snapshotId() && hasFileWithoutKey(manifest, committing)) {
          checkAdded(snapshot, committing);
        }
      }
    }
    return builder.build();
  }

  private static boolean hasFileWithoutKey(ManifestFile manifest, State committing) {
    Map<Integer, PartitionSpec> specs = committing.metadata().specsById();
    List<String> columns = List.of("file_path", "key_metadata");
    try (ManifestReader<? extends ContentFile<?>> files =
        manifest.content() == ManifestContent.DELETES
            ? ManifestFiles.readDeleteManifest(manifest, committing.io(), specs).select(columns)
            : ManifestFiles.read(manifest, committing.io(), specs).select(columns)) {
      return StreamSupport.stream(files.spliterator(), false)
          .anyMatch(file -> file.keyMetadata() == null);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Refuses new files without a key. A manifest may also list older ones, which stay in the table. */
  private void checkAdded(Snapshot snapshot, State committing) {
    TableOperations operations = new DelegatingOperations(inner) {
      @Override public TableMetadata current() { return committing.metadata(); }
      @Override public FileIO io() { return committing.io(); }
    };
    BaseTable table = new BaseTable(operations, committing.metadata().location());
    SnapshotChanges changes = SnapshotChanges.builderFor(table).snapshot(snapshot).build();
    for (DeleteFile file : changes.addedDeleteFiles()) {
      refuseIf(
          file.keyMetadata() == null,
          "the delete file %s has no key: Iceberg before 1.12 loses the keys of deletion vectors, "
              + "so use 1.12, or copy-on-write", file.location());
    }
    for (DataFile file : changes.addedDataFiles()) {
      refuseIf(
          file.keyMetadata() == null,
          "the new data file %s is not encrypted: insert its rows, instead of adding it as it is",
          file.location());
    }
  }

  /** Iceberg's encryption manager, which compares the length of a file with its key metadata. */
  private static final class CheckingManager extends StandardEncryptionManager {
    CheckingManager(List<EncryptedKey> keys, String id, int size, KeyManagementClient kms) {
      super(keys, id, size, kms);
    }

    @Override
    public NativeEncryptionInputFile decrypt(EncryptedInputFile file) {
      if (file instanceof NativeEncryptionInputFile || !hasKey(file)) {
        return super.decrypt(file);
      }
      InputFile stored = GuardedFileIO.withKey(file.encryptedInputFile());
      NativeEncryptionInputFile decrypted =
          super.decrypt(EncryptedFiles.encryptedInput(stored, file.keyMetadata()));
      // The length of a manifest list is that of the stored file, of others the recorded one, which
      // the guard below compares with the stored file.
      Long length = decrypted.keyMetadata().fileLength();
      refuseIf(
          length != null && length != file.encryptedInputFile().getLength(),
          "%s has %s bytes, and its key metadata says %s: it is truncated, or somebody changed it",
          decrypted.location(), file.encryptedInputFile().getLength(), length);
      return decrypted;
    }

    private static boolean hasKey(EncryptedInputFile file) {
      return file.keyMetadata() != null && file.keyMetadata().buffer() != null;
    }
  }
}
