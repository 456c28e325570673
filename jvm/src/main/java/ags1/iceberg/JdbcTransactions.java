package ags1.iceberg;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.ClientPool.Action;
import org.apache.iceberg.exceptions.CommitStateUnknownException;
import org.apache.iceberg.jdbc.JdbcClientPool;
import org.apache.iceberg.jdbc.UncheckedInterruptedException;
import org.apache.iceberg.jdbc.UncheckedSQLException;

/**
 * The connections of a SQL catalog, on which a thread can do several things in one transaction.
 *
 * <p>Threads may share it. A thread keeps one connection for its whole transaction, and asks for no
 * other one, so threads do not wait for each other's connections. What it asks in other threads
 * meanwhile is not part of the transaction.
 */
final class JdbcTransactions extends JdbcClientPool {
  private static final String CLOSED = "08003"; // then the pool makes another connection

  // The connection that a thread keeps during a transaction.
  private final ThreadLocal<Connection> open = new ThreadLocal<>();

  JdbcTransactions(Map<String, String> properties) {
    super(properties.get(CatalogProperties.URI), properties);
  }

  @Override
  public <R> R run(Action<R, Connection, SQLException> action, boolean retry)
      throws SQLException, InterruptedException {
    return open.get() == null
        ? super.run(connection -> action.run(checked(connection)), retry)
        : action.run(open.get());
  }

  /** Does {@code action}, in the transaction of this thread if it has one. */
  <R> R ask(Action<R, Connection, SQLException> action) {
    try {
      return run(action);
    } catch (SQLException error) {
      throw new UncheckedSQLException(error, "the SQL catalog failed");
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new UncheckedInterruptedException(interrupted, "interrupted in the catalog");
    }
  }

  /** Does {@code work} in one transaction, with all that this thread asks the catalog meanwhile. */
  <R> R inTransaction(Supplier<R> work) { return ask(connection -> transact(connection, work)); }

  private <R> R transact(Connection connection, Supplier<R> work) throws SQLException {
    connection.setAutoCommit(false);
    open.set(connection);
    try {
      R result = work.get();
      try {
        connection.setAutoCommit(true); // commits. SQLite's commit() would begin another transaction
      } catch (SQLException error) {
        tryOrClose(connection, Connection::close); // SQLite's may still be in the transaction
        throw new CommitStateUnknownException(error);
      }
      return result;
    } catch (RuntimeException | Error failure) {
      tryOrClose(connection, Connection::rollback);
      throw failure;
    } finally {
      open.remove();
      tryOrClose(connection, ended -> ended.setAutoCommit(true));
    }
  }

  private interface Step { void with(Connection connection) throws SQLException; }

  /** Otherwise the next thread would go on with half a transaction, and perhaps commit it. */
  private static void tryOrClose(Connection connection, Step step) {
    try {
      if (!connection.isClosed()) {
        step.with(connection);
      }
    } catch (SQLException broken) {
      try {
        connection.close();
      } catch (SQLException closed) {
          // it is broken anyway
      }
    }
  }

  private static Connection checked(Connection connection) throws SQLException {
    if (connection.isClosed()) {
      throw new SQLException("the connection is closed", CLOSED);
    }
    return connection;
  }
}
