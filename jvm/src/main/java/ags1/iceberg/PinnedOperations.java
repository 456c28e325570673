package ags1.iceberg;

import static ags1.iceberg.CatalogRules.refuseIf;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.HexFormat;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Stream;
import org.apache.iceberg.BaseMetastoreTableOperations;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.NoSuchTableException;
import org.apache.iceberg.exceptions.NotFoundException;
import org.apache.iceberg.exceptions.ValidationException;
import org.apache.iceberg.inmemory.InMemoryInputFile;
import org.apache.iceberg.io.FileIO;

/**
 * The operations of a table in a SQL catalog, which checks the metadata that it reads with the
 * table's pins, and writes pins in the transaction of each commit.
 */
final class PinnedOperations extends BaseMetastoreTableOperations {
  private static final String KEY = TableProperties.ENCRYPTION_TABLE_KEY;
  private static final String UNCONFIRMED = "unconfirmed";
  private static final String[] FOLDERS = {
    "write.data.path", "write.metadata.path", "write.folder-storage.path",
    "write.object-storage.path"
  };

  private final BaseMetastoreTableOperations plain;
  private final JdbcPins pins;
  private final TableIdentifier identifier;
  private boolean isConfirmed;

  PinnedOperations(
      BaseMetastoreTableOperations plain, JdbcPins pins, TableIdentifier identifier) {
    this.plain = plain;
    this.pins = pins;
    this.identifier = identifier;
  }

  @Override public FileIO io() { return plain.io(); }
  @Override protected String tableName() { return identifier.toString(); }

  @Override
  protected void doRefresh() {
    JdbcPins.Row row = pins.read(identifier);
    if (!row.found()) {
      if (currentMetadataLocation() != null) {
        throw new NoSuchTableException("the table %s was dropped", identifier);
      }
      disableRefresh();
      return;
    }
    refreshFromMetadataLocation(
        row.location(),
        error -> !(error instanceof ValidationException || error instanceof NotFoundException),
        20,
        location -> checked(location, row.pins()));
  }

  private TableMetadata checked(String location, Map<String, String> pinned) {
    byte[] stored = stored(location);
    isConfirmed = location.equals(pinned.get(JdbcPins.LOCATION));
    refuseIf(
        isConfirmed && !sha256(stored).equals(pinned.get(JdbcPins.SHA256)),
        "%s is not the file that the catalog knows: somebody has changed it", location);
    TableMetadata metadata = TableMetadataParser.read(new InMemoryInputFile(location, stored));
    String keyId = pinned.get(JdbcPins.KEY_ID);
    refuseIf(
        keyId != null && !keyId.equals(metadata.properties().get(KEY)),
        "the catalog knows '%s' as the key of the table %s, but %s names %s: somebody has replaced "
            + "the metadata",
        keyId, identifier, location, metadata.properties().get(KEY));
    return metadata;
  }

  @Override
  public void commit(TableMetadata base, TableMetadata metadata) {
    pins.inTransaction(
        connection -> {
          if (base == null) {
            plain.commit(null, metadata);
            requestRefresh();
            pin(connection, null, metadata, plain.current().metadataFileLocation());
          } else {
            super.commit(base, metadata);
          }
          return null;
        });
  }

  @Override
  protected void doCommit(TableMetadata base, TableMetadata metadata) {
    String location = writeNewMetadataIfRequired(false, metadata);
    pins.inTransaction(
        connection -> {
          if (!pins.swap(connection, identifier, base.metadataFileLocation(), location)) {
            throw new CommitFailedException("another writer has changed the table %s", identifier);
          }
          pin(connection, base, metadata, location);
          return null;
        });
  }

  private void pin(Connection connection, TableMetadata base, TableMetadata metadata, String location)
      throws SQLException {
    String keyId = metadata.properties().get(KEY);
    if (keyId != null) {
      pins.write(
          connection, identifier,
          Map.of(
              JdbcPins.KEY_ID, keyId,
              JdbcPins.LOCATION, hasStrangeFolder(base, metadata, location) ? UNCONFIRMED : location,
              JdbcPins.SHA256, sha256(stored(location))));
    } else if (base == null) {
      pins.remove(connection, identifier); // left over from a table of that name
    }
  }

  /**
   * Says whether the metadata names a folder outside of the table that came from metadata which
   * nothing confirmed: then a pin must not confirm it.
   */
  private boolean hasStrangeFolder(TableMetadata base, TableMetadata metadata, String location) {
    if (base == null || isConfirmed) {
      return false;
    }
    String folder = location.replaceFirst("[^/]+/[^/]+$", "");
    return isStrange(base.location(), metadata.location(), folder)
        || Stream.of(FOLDERS)
            .anyMatch(
                name ->
                    isStrange(
                        base.properties().get(name), metadata.properties().get(name), folder));
  }

  private static boolean isStrange(String before, String after, String folder) {
    return after != null
        && Objects.equals(before, after)
        && !oneForm(after + "/").startsWith(oneForm(folder));
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

  private static String sha256(byte[] bytes) {
    try {
      return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
    } catch (NoSuchAlgorithmException error) {
      throw new IllegalStateException(error);
    }
  }
}
