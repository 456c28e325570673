package ags1.iceberg;

import static ags1.iceberg.CatalogRules.refuseIf;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.Collectors;
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
import org.apache.iceberg.TableMetadata.MetadataLogEntry;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.encryption.EncryptedKey;
import org.apache.iceberg.encryption.EncryptingFileIO;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.encryption.EncryptionUtil;
import org.apache.iceberg.encryption.PlaintextEncryptionManager;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;

/**
 * The operations of a table in any catalog, with encryption. A table without a key ID works as it
 * does in {@code inner}.
 *
 * <p>Each version of the metadata has one immutable {@link State}. Its keys are those of the
 * version, and those that were made here and are not committed yet. A commit adds the keys that its
 * new snapshots need. If it added all, keys that somebody removed meanwhile would come back.
 *
 * <p>Threads may share it, as the threads of a Spark session share a loaded table. Iceberg does not
 * guard the fields of {@code inner}, so only one thread at a time loads or commits with it, under
 * the monitor of {@code inner}. Others read the state meanwhile. A state is replaced under the
 * monitor of this object, which a thread that has it never leaves for the other one.
 */
final class EncryptedOperations extends DelegatingOperations {
  // Attempts to commit that failed leave keys behind, because a transaction may need them again.
  private static final int MAX_MADE_KEYS = 1000;

  private final CatalogRules rules;
  private final FileIO storedFiles;
  private final State noTable;
  private final WrittenFiles written = new WrittenFiles();
  private volatile State state;
  // What loads the version; null if the state has it.
  private volatile Supplier<TableMetadata> missing;
  private volatile Again again = new Again(null, null);

  /**
   * {@code isCommitted} is false for a table that is about to be created. {@code made} are the keys
   * that were made here and are not in the metadata, the oldest first.
   */
  private record State(
      TableMetadata version,
      boolean isCommitted,
      EncryptionManager manager,
      FileIO io,
      List<EncryptedKey> made) {
    TableMetadata metadata() { return isCommitted ? version : null; }
    boolean isEncrypted() { return manager instanceof CheckingManager; }

    List<EncryptedKey> keys() {
      List<EncryptedKey> keys = new ArrayList<>(made);
      keys.addAll(version == null ? List.of() : version.encryptionKeys());
      return keys;
    }
  }

  /** A version as {@code inner} has it, and the equal object that is given out in its place. */
  private record Again(TableMetadata loaded, TableMetadata given) {}

  EncryptedOperations(TableOperations inner, CatalogRules rules) {
    super(inner);
    this.rules = rules;
    this.storedFiles = inner.io();
    this.noTable = unencrypted(null, false);
    this.state = noTable;
    this.missing = inner::current;
  }

  @Override
  public TableMetadata current() {
    Supplier<TableMetadata> loading = missing;
    return loading == null ? state.metadata() : load(loading);
  }

  @Override public TableMetadata refresh() { return load(inner::refresh); }
  @Override public FileIO io() { return state.io(); }
  @Override public EncryptionManager encryption() { return state.manager(); }

  @Override
  public LocationProvider locationProvider() { return inner.temp(current()).locationProvider(); }

  @Override
  public String metadataFileLocation(String name) {
    return inner.temp(current()).metadataFileLocation(name);
  }

  @Override
  public void commit(TableMetadata base, TableMetadata metadata) {
    // Of metadata from a file, to register a table, the guard checks what is read.
    boolean isWrittenHere = metadata.metadataFileLocation() == null;
    if (isWrittenHere) {
      checkFollows(base, metadata);
    }
    boolean isEncrypted = checkKeyId(base, metadata);
    if (base == null && metadata.snapshots().isEmpty()) {
      begin(metadata); // the new table may be asked for its files before it is read again
    }
    TableMetadata complete = isEncrypted && isWrittenHere ? withKeys(base, metadata) : metadata;
    synchronized (inner) {
      try {
        inner.commit(loaded(base), complete);
        missing = inner::current;
        written.forget();
      } catch (RuntimeException refused) {
        missing = inner::refresh;
        throw refused;
      }
    }
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

  private TableMetadata load(Supplier<TableMetadata> loading) {
    synchronized (inner) {
      try {
        TableMetadata found = given(loading.get());
        update(found);
        missing = null;
        return found;
      } catch (RuntimeException refused) {
        missing = inner::refresh; // Hive's operations would give out what they have just refused
        throw refused;
      }
    }
  }

  private TableMetadata given(TableMetadata loaded) {
    return loaded == again.loaded() ? again.given() : loaded;
  }

  private TableMetadata loaded(TableMetadata given) {
    return given == again.given() ? again.loaded() : given;
  }

  /**
   * Refuses metadata that was made from another version than the one that it is to replace.
   * Iceberg's transactions ask twice for the version when they begin, and another thread may commit
   * in between. Then that commit would be lost. The next attempt gets the version as another object,
   * so that the transaction applies its changes to it.
   */
  private void checkFollows(TableMetadata base, TableMetadata metadata) {
    if (base == null || base.metadataFileLocation() == null) {
      return;
    }
    List<MetadataLogEntry> log = metadata.previousFiles();
    if (log.isEmpty() || !log.get(log.size() - 1).file().equals(base.metadataFileLocation())) {
      synchronized (inner) {
        String json = TableMetadataParser.toJson(base);
        TableMetadata copy = TableMetadataParser.fromJson(base.metadataFileLocation(), json);
        again = new Again(loaded(base), copy);
        missing = inner::refresh;
      }
      throw new CommitFailedException("the table has changed since this commit was begun");
    }
  }

  private synchronized void update(TableMetadata found) {
    if (found != state.metadata()) {
      state = found == null ? noTable : stateOf(found, true, beyond(found, state.made()));
    }
  }

  WrittenFiles written() { return written; }

  /** Has keys made, in the state that is live by now. */
  synchronized <K> K make(Function<CheckingManager, K> making) {
    State before = state;
    refuseIf(!before.isEncrypted(), "somebody dropped the table while a commit was prepared");
    CheckingManager manager = manager(before.version(), before.made(), false);
    K key = making.apply(manager);
    Map<String, EncryptedKey> known = EncryptionUtil.encryptionKeys(before.manager());
    List<EncryptedKey> made = new ArrayList<>(before.made());
    EncryptionUtil.encryptionKeys(manager).values().stream()
        .filter(each -> !known.containsKey(each.keyId()))
        .forEach(made::add);
    if (made.size() > MAX_MADE_KEYS) {
      made.remove(made.get(0).keyId().equals(made.get(1).encryptedById()) ? 1 : 0); // not the KEK
    }
    state = encrypted(before.version(), before.isCommitted(), manager, made);
    return key;
  }

  /** Starts a table that will be created: its files are encrypted before its first commit. */
  private synchronized void begin(TableMetadata uncommitted) {
    if (!state.isEncrypted()) {
      rules.checkNew(uncommitted);
      state = stateOf(uncommitted, false, List.of());
    }
  }

  private State stateOf(TableMetadata version, boolean isCommitted, List<EncryptedKey> made) {
    if (rules.keyId(version) == null) {
      return unencrypted(version, isCommitted);
    }
    return encrypted(version, isCommitted, manager(version, made, false), made);
  }

  /** Returns those of the keys that the metadata does not have. */
  private static List<EncryptedKey> beyond(TableMetadata metadata, List<EncryptedKey> keys) {
    Set<String> had =
        metadata.encryptionKeys().stream().map(EncryptedKey::keyId).collect(Collectors.toSet());
    return keys.stream().filter(key -> !had.contains(key.keyId())).toList();
  }

  private State unencrypted(TableMetadata version, boolean isCommitted) {
    EncryptionManager none = PlaintextEncryptionManager.instance();
    return new State(version, isCommitted, none, storedFiles, List.of());
  }

  private State encrypted(
      TableMetadata version, boolean isCommitted, CheckingManager manager, List<EncryptedKey> made) {
    FileIO guarded =
        GuardedFileIO.around(
            storedFiles, rules.requireEncrypted(), CatalogRules.whyUnwritable(version));
    return new State(
        version, isCommitted, manager, EncryptingFileIO.combine(guarded, manager), List.copyOf(made));
  }

  /** {@code isCheck} says that what was written here may be read from memory. */
  private CheckingManager manager(
      TableMetadata version, List<EncryptedKey> made, boolean isCheck) {
    List<EncryptedKey> keys = new ArrayList<>(version.encryptionKeys());
    keys.addAll(made);
    int dataKeyLength =
        version.propertyAsInt(
            TableProperties.ENCRYPTION_DEK_LENGTH, TableProperties.ENCRYPTION_DEK_LENGTH_DEFAULT);
    String keyId = version.properties().get(TableProperties.ENCRYPTION_TABLE_KEY);
    WrittenFiles checked = isCheck ? written : null;
    return new CheckingManager.Of(keys, keyId, dataKeyLength, rules.kms(), this, checked).manager();
  }

  /** Returns whether the table is encrypted. */
  private boolean checkKeyId(TableMetadata base, TableMetadata metadata) {
    String name = TableProperties.ENCRYPTION_TABLE_KEY;
    String before = base == null ? null : base.properties().get(name);
    refuseIf(
        base != null && !Objects.equals(before, metadata.properties().get(name)),
        "the property '%s' of an existing table is not added, changed or removed: it is %s",
        name, before);
    return rules.checkSet(base == null ? Map.of() : base.properties(), metadata);
  }

  /** Returns the metadata with the keys of its new snapshots, after a check of these snapshots. */
  private TableMetadata withKeys(TableMetadata base, TableMetadata metadata) {
    // The base may be older than the state, in which the keys were made.
    List<EncryptedKey> made = beyond(metadata, state.keys());
    State committing = encrypted(metadata, true, manager(metadata, made, true), made);
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
    Map<Integer, PartitionSpec> specs = committing.version().specsById();
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
      @Override public TableMetadata current() { return committing.version(); }
      @Override public FileIO io() { return committing.io(); }
    };
    BaseTable table = new BaseTable(operations, committing.version().location());
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
}
