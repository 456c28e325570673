package ags1.iceberg;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.Driver;
import java.sql.DriverManager;
import java.sql.DriverPropertyInfo;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.logging.Logger;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.Transaction;
import org.apache.iceberg.Transactions;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.types.Types;

/**
 * Stops a commit at a step, where another client commits and then another thread reads the table
 * again through the same object. The steps are {@code list} and {@code metadata}, when the commit
 * creates these files, and {@code transaction}, after Iceberg's checks and before the UPDATE. In the
 * step {@code begin}, the commit is that of a property, whose transaction asks for the table's version
 * twice. In the step {@code replace}, the table is replaced, and after a refusal something is appended.
 */
public final class Interleaved extends HadoopFileIO {
  private static final String PREFIX = "jdbc:stopped:";
  private static final TableIdentifier NAME = TableIdentifier.of("db", "t");
  private static String step;
  private static Runnable meanwhile;

  public Interleaved() {}

  /** Returns the marks of the snapshots that are there after both commits, the oldest first. */
  static Object commit(JsonNode arguments) throws SQLException {
    Driver stopped = new StoppedDriver();
    DriverManager.registerDriver(stopped);
    Map<String, String> properties = new HashMap<>();
    arguments.get("catalog").fields().forEachRemaining(
        one -> properties.put(one.getKey(), one.getValue().asText()));
    try (EncryptedJdbcCatalog other = catalog(properties, "")) {
      other.createNamespace(Namespace.of("db"));
      Schema schema = new Schema(Types.NestedField.optional(1, "id", Types.LongType.get()));
      Map<String, String> given = Map.of("format-version", "3", "encryption.key-id", "a");
      other.buildTable(NAME, schema).withProperties(given).create();
      properties.put(CatalogProperties.FILE_IO_IMPL, Interleaved.class.getName());
      try (EncryptedJdbcCatalog catalog = catalog(properties, "stopped:")) {
        Table shared = catalog.loadTable(NAME);
        if (arguments.get("has-keys").asBoolean()) {
          append(shared, "first");
        }
        step = arguments.get("step").asText();
        meanwhile =
            () -> {
              append(other.loadTable(NAME), "other");
              refreshInAnotherThread(shared);
            };
        if (step.equals("begin")) {
          setProperty(shared, "stopped");
        } else if (step.equals("replace")) {
          Transaction replacing = catalog.buildTable(NAME, schema).replaceTransaction();
          reached("replace");
          try {
            replacing.commitTransaction();
          } catch (CommitFailedException refused) {
            append(shared, "stopped");
          }
        } else {
          append(shared, "stopped");
        }
      }
      List<String> marks = new ArrayList<>();
      Table after = other.loadTable(NAME);
      for (Snapshot snapshot : after.snapshots()) {
        marks.add(snapshot.summary().get("mark"));
      }
      if (after.properties().containsKey("mark")) {
        marks.add(after.properties().get("mark"));
      }
      return marks;
    } finally {
      DriverManager.deregisterDriver(stopped);
    }
  }

  private static EncryptedJdbcCatalog catalog(Map<String, String> properties, String driver) {
    Map<String, String> given = new HashMap<>(properties);
    given.computeIfPresent("uri", (name, uri) -> uri.replace("jdbc:", "jdbc:" + driver));
    EncryptedJdbcCatalog catalog = new EncryptedJdbcCatalog();
    catalog.setConf(new Configuration());
    catalog.initialize("lake", given);
    return catalog;
  }

  private static void append(Table table, String mark) {
    table.newFastAppend().set("mark", mark).commit();
  }

  private static void setProperty(Table table, String mark) {
    TableOperations operations =
        new DelegatingOperations(((HasTableOperations) table).operations()) {
          @Override
          public TableMetadata refresh() {
            TableMetadata found = super.refresh();
            reached("begin");
            return found;
          }
        };
    Transaction transaction = Transactions.newTransaction("t", operations);
    transaction.updateProperties().set("mark", mark).commit();
    transaction.commitTransaction();
  }

  /** The other thread may have to wait for this one: then that is how it is. */
  private static void refreshInAnotherThread(Table shared) {
    Thread reader = new Thread(shared::refresh);
    reader.start();
    while (reader.isAlive() && reader.getState() != Thread.State.BLOCKED) {
      Thread.onSpinWait();
    }
  }

  private static void reached(String now) {
    if (now.equals(step)) {
      step = null;
      meanwhile.run();
    }
  }

  @Override
  public OutputFile newOutputFile(String path) {
    OutputFile file = super.newOutputFile(path);
    if (path.endsWith(".metadata.json")) {
      reached("metadata");
    }
    return path.contains("/snap-") ? new ManifestList(file) : file;
  }

  private record ManifestList(OutputFile file) implements OutputFile {
    @Override public String location() { return file.location(); }
    @Override public InputFile toInputFile() { return file.toInputFile(); }

    @Override
    public PositionOutputStream create() {
      reached("list");
      return file.create();
    }

    @Override
    public PositionOutputStream createOrOverwrite() {
      reached("list");
      return file.createOrOverwrite();
    }
  }

  /** Opens {@code jdbc:stopped:X} as {@code jdbc:X}, with connections that say what they do. */
  private static final class StoppedDriver implements Driver {
    @Override public boolean acceptsURL(String url) { return url.startsWith(PREFIX); }
    @Override public int getMajorVersion() { return 1; }
    @Override public int getMinorVersion() { return 0; }
    @Override public boolean jdbcCompliant() { return false; }
    @Override public Logger getParentLogger() { return Logger.getGlobal(); }

    @Override
    public DriverPropertyInfo[] getPropertyInfo(String url, Properties given) {
      return new DriverPropertyInfo[0];
    }

    @Override
    public Connection connect(String url, Properties given) throws SQLException {
      if (!acceptsURL(url)) {
        return null;
      }
      Connection inner = DriverManager.getConnection(url.replace(PREFIX, "jdbc:"), given);
      Class<?>[] types = {Connection.class};
      return (Connection)
          Proxy.newProxyInstance(
              Interleaved.class.getClassLoader(),
              types,
              (proxy, method, arguments) -> {
                if (method.getName().equals("setAutoCommit") && arguments[0].equals(false)) {
                  reached("transaction");
                }
                try {
                  return method.invoke(inner, arguments);
                } catch (InvocationTargetException failure) {
                  throw failure.getCause();
                }
              });
    }
  }
}
