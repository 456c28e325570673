package ags1.iceberg;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.NotFoundException;
import org.apache.iceberg.jdbc.JdbcCatalog;

/**
 * Iceberg's catalog in a SQL database, which PyIceberg's {@code SqlCatalog} shares, with pins.
 *
 * <p>Pins are what the catalog itself knows of an encrypted table: the master key, a location of
 * metadata, and the SHA-256 of the file there. They are properties {@code ags1.pin.….TABLE} of the
 * namespace, which Python writes and checks too.
 */
public final class EncryptedJdbcCatalog extends JdbcCatalog {
  static final String KEY_ID = "key-id";
  static final String LOCATION = "location";
  static final String SHA256 = "sha256";
  private static final List<String> PINS = List.of(KEY_ID, LOCATION, SHA256);

  // One, which initialize() makes, for a function that the constructor above asks for.
  private final JdbcTransactions[] connections;
  private CatalogRules rules;

  public EncryptedJdbcCatalog() { this(new JdbcTransactions[1]); }

  private EncryptedJdbcCatalog(JdbcTransactions[] connections) {
    super(null, properties -> connections[0], true);
    this.connections = connections;
  }

  @Override
  public void initialize(String name, Map<String, String> properties) {
    rules = new CatalogRules(properties);
    Map<String, String> given = new HashMap<>(properties);
    if (properties.getOrDefault(CatalogProperties.URI, "").startsWith("jdbc:sqlite:")) {
      // Otherwise a transaction that reads and then writes fails if another one does the same.
      given.putIfAbsent(PROPERTY_PREFIX + "transaction_mode", "IMMEDIATE");
    }
    connections[0] = new JdbcTransactions(given);
    super.initialize(name, given);
  }

  @Override
  protected TableOperations newTableOps(TableIdentifier identifier) {
    return rules.over(new PinnedOperations(super.newTableOps(identifier), this, identifier));
  }

  @Override
  public boolean dropTable(TableIdentifier identifier, boolean purge) {
    TableOperations operations = newTableOps(identifier);
    TableMetadata last = null;
    try {
      last = purge ? operations.current() : null;
    } catch (NotFoundException missing) {
      // as in JdbcCatalog: nothing is purged
    }
    boolean dropped =
        inTransaction(
            () -> {
              setPins(identifier, Map.of());
              return super.dropTable(identifier, false);
            });
    if (dropped && last != null) {
      CatalogUtil.dropTableData(operations.io(), last);
    }
    return dropped;
  }

  @Override
  public void renameTable(TableIdentifier from, TableIdentifier to) {
    inTransaction(
        () -> {
          Map<String, String> pinned = pins(from);
          setPins(from, Map.of());
          super.renameTable(from, to);
          setPins(to, pinned);
          return null;
        });
  }

  /** Does {@code work} in one transaction, with all that this thread asks the catalog meanwhile. */
  <R> R inTransaction(Supplier<R> work) { return connections[0].inTransaction(work); }

  /** Returns the pins that a table has. */
  Map<String, String> pins(TableIdentifier table) {
    Map<String, String> properties = loadNamespaceMetadata(table.namespace());
    Map<String, String> pins = new HashMap<>();
    for (String pin : PINS) {
      String value = properties.get(property(pin, table));
      if (value != null) {
        pins.put(pin, value);
      }
    }
    return pins;
  }

  /** Replaces the pins of a table. */
  void setPins(TableIdentifier table, Map<String, String> pins) {
    Map<String, String> properties = new HashMap<>();
    pins.forEach((pin, value) -> properties.put(property(pin, table), value));
    if (namespaceExists(table.namespace())) {
      Stream<String> all = PINS.stream().map(pin -> property(pin, table));
      removeProperties(table.namespace(), all.collect(Collectors.toSet()));
      setProperties(table.namespace(), properties);
    }
  }

  private static String property(String pin, TableIdentifier table) {
    return "ags1.pin." + pin + "." + table.name();
  }
}
