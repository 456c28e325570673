package ags1.iceberg;

import static ags1.iceberg.CatalogRules.refuseIf;
import static ags1.iceberg.EncryptedJdbcCatalog.KEY_ID;
import static ags1.iceberg.EncryptedJdbcCatalog.LOCATION;
import static ags1.iceberg.EncryptedJdbcCatalog.SHA256;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.inmemory.InMemoryInputFile;
import org.apache.iceberg.io.LocationProvider;
import org.apache.iceberg.relocated.com.google.common.hash.Hashing;

/**
 * The operations of a table in a SQL catalog, which check the metadata that they read with the
 * table's pins, and write pins in the transaction of each commit.
 */
final class PinnedOperations extends DelegatingOperations {
  private static final String KEY = TableProperties.ENCRYPTION_TABLE_KEY;
  private static final String UNCONFIRMED = "unconfirmed";
  private static final List<String> FOLDERS =
      List.of(
          "write.data.path", "write.metadata.path", "write.folder-storage.path",
          "write.object-storage.path");

  private final EncryptedJdbcCatalog catalog;
  private final TableIdentifier identifier;
  // The metadata as the operations inside have it, and that of the bytes that were checked.
  private TableMetadata unchecked;
  private TableMetadata checked;
  private boolean isConfirmed;
  private boolean isUncertain;

  PinnedOperations(
      TableOperations plain, EncryptedJdbcCatalog catalog, TableIdentifier identifier) {
    super(plain);
    this.catalog = catalog;
    this.identifier = identifier;
  }

  @Override
  public TableMetadata current() {
    return isUncertain ? refresh() : check(inner.current());
  }

  @Override
  public TableMetadata refresh() {
    TableMetadata refreshed = check(inner.refresh());
    isUncertain = false;
    return refreshed;
  }

  // Not by the unchecked metadata.
  @Override public LocationProvider locationProvider() { return temp(current()).locationProvider(); }

  @Override
  public String metadataFileLocation(String name) {
    return temp(current()).metadataFileLocation(name);
  }

  private TableMetadata check(TableMetadata found) {
    if (found == null || found == unchecked) {
      return found == null ? null : checked;
    }
    String location = found.metadataFileLocation();
    Map<String, String> pinned = catalog.pins(identifier);
    boolean isPinned = location.equals(pinned.get(LOCATION));
    if (!isPinned) {
      TableMetadata now = inner.refresh();
      if (now != found) {
        return check(now); // another writer was between location and pins
      }
    }
    byte[] stored = stored(location);
    refuseIf(
        isPinned && !sha256(stored).equals(pinned.get(SHA256)),
        "%s is not the file that the catalog knows: somebody has changed it", location);
    TableMetadata metadata = parsed(location, stored);
    String keyId = pinned.get(KEY_ID);
    refuseIf(
        keyId != null && !keyId.equals(metadata.properties().get(KEY)),
        "the catalog knows '%s' as the key of the table %s, but %s names %s: somebody has replaced "
            + "the metadata", keyId, identifier, location, metadata.properties().get(KEY));
    isConfirmed = isPinned;
    unchecked = found;
    checked = metadata;
    return metadata;
  }

  @Override
  public void commit(TableMetadata base, TableMetadata metadata) {
    if (base != null && base != current()) {
      throw new CommitFailedException("another writer has changed the table %s", identifier);
    }
    String keyId = metadata.properties().get(KEY);
    isUncertain = true; // until the transaction has ended well, and the table is read again
    catalog.inTransaction(
        () -> {
          inner.commit(base == null ? null : unchecked, metadata);
          String location = inner.refresh().metadataFileLocation();
          byte[] stored = stored(location);
          refuseIf(
              !TableMetadataParser.toJson(parsed(location, stored))
                  .equals(TableMetadataParser.toJson(metadata)),
              "%s is not the metadata that was committed: somebody has changed it", location);
          if (keyId != null) {
            String confirmed = hasStrangeFolder(base, metadata, location) ? UNCONFIRMED : location;
            catalog.setPins(
                identifier, Map.of(KEY_ID, keyId, LOCATION, confirmed, SHA256, sha256(stored)));
          } else if (base == null) {
            catalog.setPins(identifier, Map.of()); // left over from a table of that name
          }
          return null;
        });
  }

  /**
   * Says whether the metadata names a folder outside of the table that came from metadata which
   * nothing confirmed: then a pin must not confirm it.
   */
  private boolean hasStrangeFolder(TableMetadata base, TableMetadata metadata, String location) {
    String folder = oneForm(location.replaceFirst("[^/]+/[^/]+$", ""));
    return base != null
        && !isConfirmed
        && folders(metadata)
            .filter(folders(base).toList()::contains)
            .anyMatch(named -> !named.substring(named.indexOf('=') + 1).startsWith(folder));
  }

  /** Returns the folders with their names. */
  private static Stream<String> folders(TableMetadata metadata) {
    Stream<String> given =
        FOLDERS.stream()
            .filter(metadata.properties()::containsKey)
            .map(name -> name + "=" + oneForm(metadata.properties().get(name) + "/"));
    return Stream.concat(Stream.of("=" + oneForm(metadata.location() + "/")), given);
  }

  /** Hadoop writes {@code file:///} as {@code file:/}. */
  private static String oneForm(String location) {
    return location.replaceFirst("^file:/+", "file:/");
  }

  private byte[] stored(String location) {
    try (InputStream file = io().newInputFile(location).newStream()) {
      return file.readAllBytes();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static TableMetadata parsed(String location, byte[] stored) {
    return TableMetadataParser.read(new InMemoryInputFile(location, stored));
  }

  private static String sha256(byte[] bytes) {
    return Hashing.sha256().hashBytes(bytes).toString();
  }
}
