package ags1.iceberg;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.HashMap;
import java.util.Map;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.ClientPool.Action;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.CommitStateUnknownException;
import org.apache.iceberg.jdbc.JdbcClientPool;
import org.apache.iceberg.jdbc.UncheckedInterruptedException;
import org.apache.iceberg.jdbc.UncheckedSQLException;

/**
 * What a SQL catalog knows of its encrypted tables: the master key, a location of metadata, and the
 * SHA-256 of the file there. They are rows of {@code iceberg_namespace_properties}, under the names
 * {@code ags1.pin.….TABLE}, which Python writes and checks too.
 */
final class JdbcPins extends JdbcClientPool {
  static final String KEY_ID = "key-id";
  static final String LOCATION = "location";
  static final String SHA256 = "sha256";
  private static final String TABLE = "iceberg_namespace_properties";
  private static final String WHERE =
      " WHERE catalog_name = ? AND namespace = ? AND property_key IN (?, ?, ?)";

  private final String catalog;
  // The connection that a thread keeps during a transaction.
  private final ThreadLocal<Connection> open = new ThreadLocal<>();

  JdbcPins(String catalog, Map<String, String> properties) {
    super(properties.get(CatalogProperties.URI), properties);
    this.catalog = catalog;
  }

  @Override
  public <R> R run(Action<R, Connection, SQLException> action, boolean retry)
      throws SQLException, InterruptedException {
    return open.get() == null ? super.run(action, retry) : action.run(open.get());
  }

  /** Runs {@code work} in one transaction, with all that this thread asks the catalog meanwhile. */
  <R> R inTransaction(Action<R, Connection, SQLException> work) {
    return asked(
        connection -> {
          connection.setAutoCommit(false);
          open.set(connection);
          try {
            R result = work.run(connection);
            try {
              connection.commit();
            } catch (SQLException error) {
              throw new CommitStateUnknownException(error);
            }
            return result;
          } catch (SQLException | RuntimeException failure) {
            connection.rollback();
            throw failure;
          } finally {
            open.remove();
            connection.setAutoCommit(true);
          }
        });
  }

  private <R> R asked(Action<R, Connection, SQLException> work) {
    try {
      return run(work, false);
    } catch (SQLException error) {
      throw new UncheckedSQLException(error, "the catalog %s failed", catalog);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new UncheckedInterruptedException(interrupted, "interrupted in the catalog");
    }
  }

  Map<String, String> read(TableIdentifier table) {
    String sql = "SELECT property_key, property_value FROM " + TABLE + WHERE;
    return asked(
        connection -> {
          Map<String, String> pins = new HashMap<>();
          try (PreparedStatement statement = prepared(connection, sql, pins(table));
              ResultSet found = statement.executeQuery()) {
            while (found.next()) {
              pins.put(found.getString(1).split("\\.", 4)[2], found.getString(2));
            }
          }
          return pins;
        });
  }

  void remove(Connection connection, TableIdentifier table) throws SQLException {
    update(connection, "DELETE FROM " + TABLE + WHERE, pins(table));
  }

  void write(Connection connection, TableIdentifier table, Map<String, String> pins)
      throws SQLException {
    remove(connection, table);
    String columns = " (catalog_name, namespace, property_key, property_value) VALUES (?, ?, ?, ?)";
    for (Map.Entry<String, String> pin : pins.entrySet()) {
      update(
          connection, "INSERT INTO " + TABLE + columns,
          catalog, namespace(table), key(pin.getKey(), table), pin.getValue());
    }
  }

  private static void update(Connection connection, String sql, String... values)
      throws SQLException {
    try (PreparedStatement statement = prepared(connection, sql, values)) {
      statement.executeUpdate();
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

  private String[] pins(TableIdentifier table) {
    return new String[] {
      catalog, namespace(table), key(KEY_ID, table), key(LOCATION, table), key(SHA256, table)
    };
  }

  private static String key(String kind, TableIdentifier table) {
    return "ags1.pin." + kind + "." + table.name();
  }

  private static String namespace(TableIdentifier table) {
    return String.join(".", table.namespace().levels());
  }
}
