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

/** The connections of a SQL catalog, on which a thread can do several things in one transaction. */
final class JdbcTransactions extends JdbcClientPool {
  // The connection that a thread keeps during a transaction.
  private final ThreadLocal<Connection> open = new ThreadLocal<>();

  JdbcTransactions(Map<String, String> properties) {
    super(properties.get(CatalogProperties.URI), properties);
  }

  @Override
  public <R> R run(Action<R, Connection, SQLException> action, boolean retry)
      throws SQLException, InterruptedException {
    return open.get() == null ? super.run(action, retry) : action.run(open.get());
  }

  /** Does {@code work} in one transaction, with all that this thread asks the catalog meanwhile. */
  <R> R inTransaction(Supplier<R> work) {
    try {
      return run(connection -> transact(connection, work), false);
    } catch (SQLException error) {
      throw new UncheckedSQLException(error, "the SQL catalog failed");
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new UncheckedInterruptedException(interrupted, "interrupted in the catalog");
    }
  }

  private <R> R transact(Connection connection, Supplier<R> work) throws SQLException {
    connection.setAutoCommit(false);
    open.set(connection);
    try {
      R result = work.get();
      try {
        connection.commit();
      } catch (SQLException error) {
        throw new CommitStateUnknownException(error);
      }
      return result;
    } catch (RuntimeException | Error failure) {
      connection.rollback();
      throw failure;
    } finally {
      open.remove();
      connection.setAutoCommit(true);
    }
  }
}
