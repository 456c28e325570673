package ags1.iceberg;

import static org.apache.iceberg.BaseMetastoreTableOperations.METADATA_LOCATION_PROP;

import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
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
 * namespace, which Python writes and checks too. In SQLite, a transaction takes the lock for writing
 * at once. Threads may share the catalog.
 */
public final class EncryptedJdbcCatalog extends JdbcCatalog {
  static final String KEY_ID = "key-id";
  static final String LOCATION = "location";
  static final String SHA256 = "sha256";
  private static final List<String> PINS = List.of(KEY_ID, LOCATION, SHA256);
  private static final String IS_TABLE = " AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)";
  private static final String ROW =
      "SELECT metadata_location, property_key, property_value FROM iceberg_tables t "
          + "LEFT JOIN iceberg_namespace_properties ON property_key IN (?, ?, ?) "
          + "AND iceberg_namespace_properties.catalog_name = t.catalog_name "
          + "AND namespace = table_namespace "
          + "WHERE t.catalog_name = ? AND table_namespace = ? AND table_name = ?";
  private static final String MOVE =
      "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ? "
          + "WHERE catalog_name = ? AND table_namespace = ? AND table_name = ? "
          + "AND metadata_location = ?";
  private static final String CHANGE_PINS =
      "UPDATE iceberg_namespace_properties SET property_value = "
          + "CASE property_key WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END "
          + "WHERE property_key IN (?, ?, ?) AND catalog_name = ? AND namespace = ?";
  private static final String FORGET_PINS =
      "DELETE FROM iceberg_namespace_properties "
          + "WHERE property_key IN (?, ?, ?) AND catalog_name = ? AND namespace = ?";
  private static final String MOVE_PIN =
      "UPDATE iceberg_namespace_properties SET namespace = ?, property_key = ? "
          + "WHERE property_key = ? AND catalog_name = ? AND namespace = ?";
  private static final String PIN =
      "INSERT INTO iceberg_namespace_properties "
          + "(catalog_name, namespace, property_key, property_value) VALUES "
          + "(?, ?, ?, ?), (?, ?, ?, ?), (?, ?, ?, ?)";

  // One, which initialize() makes, for a function that the constructor above asks for.
  private final JdbcTransactions[] connections;
  // Set once, by initialize().
  private CatalogRules rules;
  private boolean hasTypes; // of rows: views are in the same table

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
    hasTypes =
        connections[0].ask(
            database -> {
              DatabaseMetaData tables = database.getMetaData();
              try (ResultSet found = tables.getColumns(null, null, "iceberg_tables", "iceberg_type")) {
                return found.next();
              }
            });
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
              // In the order of a commit: the row of the table is a lock.
              boolean isGone = super.dropTable(identifier, false);
              setPins(identifier, Map.of());
              return isGone;
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
          super.renameTable(from, to);
          if (!from.equals(to)) {
            setPins(to, Map.of());
            String namespace = to.namespace().toString();
            PINS.forEach(
                pin -> {
                  List<String> names = List.of(namespace, property(pin, to), property(pin, from));
                  update(MOVE_PIN, all(names, namespace(from)));
                });
          }
          return null;
        });
  }

  /** Does {@code work} in one transaction, with all that this thread asks the catalog meanwhile. */
  <R> R inTransaction(Supplier<R> work) { return connections[0].inTransaction(work); }

  /** Returns the location of a table's metadata, by its column's name, and the table's pins. */
  Map<String, String> row(TableIdentifier table) {
    List<String> values = all(pins(table), place(table));
    return connections[0].ask(
        database -> {
          Map<String, String> row = new HashMap<>();
          try (PreparedStatement query =
                  prepared(database, ROW + (hasTypes ? IS_TABLE : ""), values);
              ResultSet found = query.executeQuery()) {
            while (found.next()) {
              row.put(METADATA_LOCATION_PROP, found.getString(METADATA_LOCATION_PROP));
              int pin = values.indexOf(found.getString("property_key"));
              if (pin >= 0) {
                row.put(PINS.get(pin), found.getString("property_value"));
              }
            }
          }
          return row;
        });
  }

  /** Sets the location of a table's metadata; returns false if it is not {@code from} any more. */
  boolean move(TableIdentifier table, String from, String to) {
    return update(MOVE, all(List.of(to, from), place(table), List.of(from))) == 1;
  }

  /** Replaces the pins of a table: {@code pins} are all of them, or none. */
  void setPins(TableIdentifier table, Map<String, String> pins) {
    List<String> where = all(pins(table), namespace(table));
    List<String> cases = new ArrayList<>();
    List<String> rows = new ArrayList<>();
    for (String pin : pins.isEmpty() ? List.<String>of() : PINS) {
      List<String> row = List.of(property(pin, table), pins.get(pin));
      cases.addAll(row);
      rows.addAll(all(namespace(table), row));
    }
    if (pins.isEmpty() || update(CHANGE_PINS, all(cases, where)) != PINS.size()) {
      update(FORGET_PINS, where);
      if (!pins.isEmpty()) {
        update(PIN, rows);
      }
    }
  }

  private int update(String statement, List<String> values) {
    return connections[0].ask(
        database -> {
          try (PreparedStatement update = prepared(database, statement, values)) {
            return update.executeUpdate();
          }
        });
  }

  private static PreparedStatement prepared(
      Connection database, String statement, List<String> values) throws SQLException {
    PreparedStatement prepared = database.prepareStatement(statement);
    for (int i = 0; i < values.size(); i++) {
      prepared.setString(i + 1, values.get(i));
    }
    return prepared;
  }

  @SafeVarargs
  private static List<String> all(List<String>... lists) {
    List<String> all = new ArrayList<>();
    for (List<String> list : lists) {
      all.addAll(list);
    }
    return all;
  }

  private List<String> namespace(TableIdentifier table) {
    return List.of(name(), table.namespace().toString());
  }

  private List<String> place(TableIdentifier table) {
    return List.of(name(), table.namespace().toString(), table.name());
  }

  private static List<String> pins(TableIdentifier table) {
    return PINS.stream().map(pin -> property(pin, table)).toList();
  }

  private static String property(String pin, TableIdentifier table) {
    return "ags1.pin." + pin + "." + table.name();
  }
}
