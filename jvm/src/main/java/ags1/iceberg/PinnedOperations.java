package ags1.iceberg;

import static ags1.iceberg.CatalogRules.refuseIf;
import static ags1.iceberg.EncryptedJdbcCatalog.KEY_ID;
import static ags1.iceberg.EncryptedJdbcCatalog.LOCATION;
import static ags1.iceberg.EncryptedJdbcCatalog.SHA256;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.stream.Stream;
import java.util.zip.GZIPInputStream;
import org.apache.iceberg.BaseMetastoreTableOperations;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.NoSuchTableException;
import org.apache.iceberg.exceptions.NotFoundException;
import org.apache.iceberg.exceptions.ValidationException;
import org.apache.iceberg.inmemory.InMemoryInputFile;
import org.apache.iceberg.inmemory.InMemoryOutputFile;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.relocated.com.google.common.hash.Hashing;

/**
 * The operations of a table in a SQL catalog, which check the metadata that they read with the
 * table's pins, and write pins in the transaction of each commit.
 *
 * <p>The version that a commit replaces is the one that its caller names: the catalog compares the
 * location in its UPDATE. After some commits the metadata is parsed anew, because its snapshots keep
 * what was asked of them. The fields are not for several threads. {@link EncryptedOperations} lets
 * one at a time load or commit.
 */
final class PinnedOperations extends BaseMetastoreTableOperations {
  private static final String KEY = TableProperties.ENCRYPTION_TABLE_KEY;
  private static final String UNCONFIRMED = "unconfirmed";
  private static final int MAX_RETRIES = 20; // as Iceberg's other catalogs
  // As in Python: of metadata.json, and how large a compressed one may become.
  private static final int MAX_SIZE = 256 << 20;
  private static final long FREE_SIZE = 4 << 20;
  private static final long MAX_GROWTH = 64;
  private static final String COMPRESSED = ".*(\\.gz\\.metadata\\.json|\\.metadata\\.json\\.gz)";
  // A snapshot keeps the list of its manifests once it was asked for. Parsed metadata has new ones.
  private static final int MAX_UNPARSED = 16;
  private static final List<String> FOLDERS =
      List.of(
          "write.data.path", "write.metadata.path", "write.folder-storage.path",
          "write.object-storage.path");

  private final TableOperations plain;
  private final EncryptedJdbcCatalog catalog;
  private final TableIdentifier identifier;
  private TableMetadata confirmed; // the version that the pins have confirmed
  private int unparsed = 0; // commits since the metadata was parsed

  /** {@code plain} are Iceberg's own operations of that catalog, which create tables. */
  PinnedOperations(
      TableOperations plain, EncryptedJdbcCatalog catalog, TableIdentifier identifier) {
    this.plain = plain;
    this.catalog = catalog;
    this.identifier = identifier;
  }

  @Override public FileIO io() { return plain.io(); }
  @Override protected String tableName() { return identifier.toString(); }

  @Override
  protected void doRefresh() {
    Map<String, String> row = catalog.row(identifier);
    String location = row.get(METADATA_LOCATION_PROP);
    if (location != null) {
      refreshFromMetadataLocation(
          location, PinnedOperations::mayPass, MAX_RETRIES, named -> checked(named, row));
    } else if (currentMetadataLocation() == null) {
      disableRefresh();
    } else {
      throw new NoSuchTableException("the table %s was dropped meanwhile", identifier);
    }
  }

  private static boolean mayPass(Exception error) {
    return !(error instanceof NotFoundException || error instanceof ValidationException);
  }

  private TableMetadata checked(String location, Map<String, String> pins) {
    boolean isPinned = location.equals(pins.get(LOCATION));
    byte[] stored = stored(location);
    refuseIf(
        isPinned && !sha256(stored).equals(pins.get(SHA256)),
        "%s is not the file that the catalog knows: somebody has changed it", location);
    TableMetadata metadata = parsed(location, stored);
    String keyId = pins.get(KEY_ID);
    refuseIf(
        keyId != null && !keyId.equals(metadata.properties().get(KEY)),
        "the catalog knows '%s' as the key of the table %s, but %s names %s: somebody has replaced "
            + "the metadata", keyId, identifier, location, metadata.properties().get(KEY));
    confirmed = isPinned ? metadata : null;
    return metadata;
  }

  @Override
  protected void doCommit(TableMetadata base, TableMetadata metadata) {
    boolean isRegistered = base == null && metadata.metadataFileLocation() != null;
    String location = isRegistered ? metadata.metadataFileLocation() : newLocation(metadata);
    byte[] bytes = isRegistered ? stored(location) : bytes(location, metadata);
    boolean mustParse = base == null || ++unparsed >= MAX_UNPARSED;
    TableMetadata written = mustParse ? parsed(location, bytes) : at(location, metadata);
    if (isRegistered) {
      refuseIf(
          !Arrays.equals(bytes(location, metadata), bytes(location, written)),
          "%s is not the metadata that was committed: somebody has changed it", location);
    } else {
      write(location, bytes);
    }
    unparsed = mustParse ? 0 : unparsed;
    String keyId = metadata.properties().get(KEY);
    boolean isConfirmed = !hasStrangeFolder(base, metadata, location);
    catalog.inTransaction(
        () -> {
          if (base == null) {
            plain.commit(null, written);
          } else if (!catalog.move(identifier, base.metadataFileLocation(), location)) {
            throw new CommitFailedException("another writer has changed the table %s", identifier);
          }
          if (keyId != null) {
            String pinned = isConfirmed ? location : UNCONFIRMED;
            catalog.setPins(
                identifier, Map.of(KEY_ID, keyId, LOCATION, pinned, SHA256, sha256(bytes)));
          } else if (base == null) {
            catalog.setPins(identifier, Map.of()); // left over from a table of that name
          }
          return null;
        });
    refreshFromMetadataLocation(location, null, 0, any -> written);
    confirmed = keyId != null && isConfirmed ? written : null;
  }

  /**
   * Says whether the metadata names a folder outside of the table that came from metadata which
   * nothing confirmed: then a pin must not confirm it.
   */
  private boolean hasStrangeFolder(TableMetadata base, TableMetadata metadata, String location) {
    String folder = oneForm(location.replaceFirst("[^/]+/[^/]+$", ""));
    return base != null
        && base != confirmed
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

  private String newLocation(TableMetadata metadata) {
    String codec =
        metadata.property(
            TableProperties.METADATA_COMPRESSION, TableProperties.METADATA_COMPRESSION_DEFAULT);
    String end = TableMetadataParser.getFileExtension(codec);
    String name = String.format("%05d-%s%s", currentVersion() + 1, UUID.randomUUID(), end);
    return metadataFileLocation(metadata, name);
  }

  private static byte[] bytes(String location, TableMetadata metadata) {
    InMemoryOutputFile file = new InMemoryOutputFile(location);
    TableMetadataParser.overwrite(metadata, file);
    return file.toByteArray();
  }

  private void write(String location, byte[] content) {
    try (OutputStream file = io().newOutputFile(location).createOrOverwrite()) {
      file.write(content);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private byte[] stored(String location) {
    try (InputStream file = GuardedFileIO.opened(io().newInputFile(location))) {
      return notLarger(MAX_SIZE, file, location);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static TableMetadata parsed(String location, byte[] stored) {
    if (location.matches(COMPRESSED)) {
      int limit = (int) Math.min(MAX_SIZE, FREE_SIZE + MAX_GROWTH * stored.length);
      try (InputStream text = new GZIPInputStream(new ByteArrayInputStream(stored))) {
        notLarger(limit, text, location);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
    return TableMetadataParser.read(new InMemoryInputFile(location, stored));
  }

  private static byte[] notLarger(int limit, InputStream file, String location) throws IOException {
    byte[] bytes = file.readNBytes(limit + 1);
    refuseIf(bytes.length > limit, "the metadata %s is larger than %s bytes", location, limit);
    return bytes;
  }

  /** Returns the metadata as one that was parsed from a file at the location. */
  private static TableMetadata at(String location, TableMetadata metadata) {
    return TableMetadata.buildFrom(metadata).withMetadataLocation(location).discardChanges().build();
  }

  private static String sha256(byte[] bytes) {
    return Hashing.sha256().hashBytes(bytes).toString();
  }
}
