package ags1.iceberg;

import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.ClientPool.Action;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.jdbc.JdbcClientPool;
import org.apache.iceberg.jdbc.UncheckedInterruptedException;
import org.apache.iceberg.jdbc.UncheckedSQLException;

/**
 * What a SQL catalog knows of its encrypted tables: the master key, a location of metadata, and the
 * SHA-256 of the file there. They are rows of {@code iceberg_namespace_properties}, under the names
 * {@code ags1.pin.….TABLE}, which Python writes and checks too.
 */
final class JdbcPins {
  static final String KEY_ID = "key-id";
  static final String LOCATION = "location";
  static final String SHA256 = "sha256";
  private static final List<String> KINDS = List.of(KEY_ID, LOCATION, SHA256);
  private static final String PREFIX = "ags1.pin.";
  private static final String PROPERTIES = "iceberg_namespace_properties";
  private static final String WHERE = " WHERE catalog_name = ? AND namespace = ? AND property_key = ?";

  private Pool pool;
  private String catalog;
  private boolean exist;
  private boolean hasViews;

  /** A table's row with its pins; {@code found} is false if there is no such row. */
  record Row(boolean found, String location, Map<String, String> pins) {}

  /** A pool whose connection a thread keeps during a transaction. */
  private static final class Pool extends JdbcClientPool {
    private final ThreadLocal<Connection> open = new ThreadLocal<>();

    private Pool(Map<String, String> properties) {
      super(properties.get(CatalogProperties.URI), properties);
    }

    @Override
    public <R> R run(Action<R, Connection, SQLException> action, boolean retry)
        throws SQLException, InterruptedException {
      return open.get() == null ? super.run(action, retry) : action.run(open.get());
    }
  }

  JdbcClientPool connect(Map<String, String> properties) {
    pool = new Pool(properties);
    return pool;
  }

  /** Takes the name of the catalog, and looks whether the tables for pins and for views exist. */
  void initialize(String name) {
    catalog = name;
    run(
        connection -> {
          DatabaseMetaData tables = connection.getMetaData();
          for (String table : List.of(PROPERTIES, PROPERTIES.toUpperCase(Locale.ROOT))) {
            try (ResultSet found = tables.getTables(null, null, table, null)) {
              exist |= found.next();
            }
          }
          try (ResultSet found = tables.getColumns(null, null, "iceberg_tables", "iceberg_type")) {
            hasViews = found.next();
          }
          return null;
        },
        true);
  }

  boolean exist() {
    return exist;
  }

  /** Runs {@code work} in one transaction, with all that this thread does in the pool meanwhile. */
  <R> R inTransaction(Action<R, Connection, SQLException> work) {
    if (pool.open.get() != null) {
      return run(work, false);
    }
    return run(
        connection -> {
          connection.setAutoCommit(false);
          pool.open.set(connection);
          try {
            R result = work.run(connection);
            connection.commit();
            return result;
          } catch (SQLException | RuntimeException failure) {
            connection.rollback();
            throw failure;
          } finally {
            pool.open.remove();
            connection.setAutoCommit(true);
          }
        },
        false);
  }

  private <R> R run(Action<R, Connection, SQLException> work, boolean retry) {
    try {
      return pool.run(work, retry);
    } catch (SQLException error) {
      throw new UncheckedSQLException(error, "the catalog %s failed", catalog);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new UncheckedInterruptedException(interrupted, "interrupted in the catalog");
    }
  }

  /** Reads a table's row and its pins in one statement, so that both are of one moment. */
  Row read(TableIdentifier table) {
    String sql =
        "SELECT t.metadata_location, p.property_key, p.property_value FROM iceberg_tables t "
            + "LEFT JOIN iceberg_namespace_properties p ON p.catalog_name = t.catalog_name "
            + "AND p.namespace = t.table_namespace AND p.property_key IN (?, ?, ?) "
            + "WHERE t.catalog_name = ? AND t.table_namespace = ? AND t.table_name = ?"
            + (hasViews ? " AND (t.iceberg_type = 'TABLE' OR t.iceberg_type IS NULL)" : "");
    return run(
        connection -> {
          Map<String, String> pins = new HashMap<>();
          boolean isFound = false;
          String location = null;
          try (PreparedStatement statement =
                  prepared(
                      connection, sql, key(KEY_ID, table), key(LOCATION, table), key(SHA256, table),
                      catalog, namespace(table), table.name());
              ResultSet found = statement.executeQuery()) {
            while (found.next()) {
              isFound = true;
              location = found.getString(1);
              if (found.getString(2) != null) {
                pins.put(found.getString(2).split("\\.", 4)[2], found.getString(3));
              }
            }
          }
          return new Row(isFound, location, pins);
        },
        true);
  }

  /** Sets the location of a table's metadata; returns false if it is not {@code from} any more. */
  boolean swap(Connection connection, TableIdentifier table, String from, String to)
      throws SQLException {
    return 1
        == update(
            connection,
            "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ? WHERE "
                + "catalog_name = ? AND table_namespace = ? AND table_name = ? "
                + "AND metadata_location = ?",
            to, from, catalog, namespace(table), table.name(), from);
  }

  void remove(Connection connection, TableIdentifier table) throws SQLException {
    for (String kind : KINDS) {
      update(
          connection, "DELETE FROM " + PROPERTIES + WHERE,
          catalog, namespace(table), key(kind, table));
    }
  }

  void write(Connection connection, TableIdentifier table, Map<String, String> pins)
      throws SQLException {
    remove(connection, table);
    for (Map.Entry<String, String> pin : pins.entrySet()) {
      update(
          connection,
          "INSERT INTO " + PROPERTIES
              + " (catalog_name, namespace, property_key, property_value) VALUES (?, ?, ?, ?)",
          catalog, namespace(table), key(pin.getKey(), table), pin.getValue());
    }
  }

  void move(Connection connection, TableIdentifier from, TableIdentifier to) throws SQLException {
    remove(connection, to);
    for (String kind : KINDS) {
      update(
          connection, "UPDATE " + PROPERTIES + " SET namespace = ?, property_key = ?" + WHERE,
          namespace(to), key(kind, to), catalog, namespace(from), key(kind, from));
    }
  }

  private static int update(Connection connection, String sql, String... values)
      throws SQLException {
    try (PreparedStatement statement = prepared(connection, sql, values)) {
      return statement.executeUpdate();
    }
  }

  private static PreparedStatement prepared(Connection connection, String sql, String... values)
      throws SQLException {
    PreparedStatement statement = connection.prepareStatement(sql);
    for (int i = 0; i < values.length; i++) {
      statement.setString(i + 1, values[i]);
    }
    return statement;
  }

  private static String key(String kind, TableIdentifier table) {
    return PREFIX + kind + "." + table.name();
  }

  private static String namespace(TableIdentifier table) {
    Namespace namespace = table.namespace();
    return String.join(".", namespace.levels());
  }
}
