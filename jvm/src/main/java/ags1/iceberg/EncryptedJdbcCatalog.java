package ags1.iceberg;

import java.util.HashMap;
import java.util.Map;
import org.apache.iceberg.BaseMetastoreTableOperations;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.NotFoundException;
import org.apache.iceberg.jdbc.JdbcCatalog;

/** Iceberg's catalog in a SQL database, which PyIceberg's {@code SqlCatalog} shares, with pins. */
public final class EncryptedJdbcCatalog extends JdbcCatalog {
  private final JdbcPins pins;
  private CatalogRules rules;

  public EncryptedJdbcCatalog() {
    this(new JdbcPins());
  }

  private EncryptedJdbcCatalog(JdbcPins pins) {
    super(null, pins::connect, true);
    this.pins = pins;
  }

  @Override
  public void initialize(String name, Map<String, String> properties) {
    rules = new CatalogRules(properties);
    Map<String, String> given = new HashMap<>(properties);
    if (properties.getOrDefault(CatalogProperties.URI, "").startsWith("jdbc:sqlite:")) {
      // Otherwise a transaction that reads and then writes fails if another one does the same.
      given.putIfAbsent(PROPERTY_PREFIX + "transaction_mode", "IMMEDIATE");
    }
    super.initialize(name, given);
    pins.initialize(name());
  }

  @Override
  protected TableOperations newTableOps(TableIdentifier identifier) {
    TableOperations plain = super.newTableOps(identifier);
    return rules.over(
        pins.exist()
            ? new PinnedOperations((BaseMetastoreTableOperations) plain, pins, identifier)
            : plain);
  }

  @Override
  public boolean dropTable(TableIdentifier identifier, boolean purge) {
    if (!pins.exist()) {
      return super.dropTable(identifier, purge);
    }
    TableOperations operations = newTableOps(identifier);
    TableMetadata last = null;
    try {
      last = purge ? operations.current() : null;
    } catch (NotFoundException missing) {
      // as in JdbcCatalog: nothing is purged
    }
    boolean dropped =
        pins.inTransaction(
            connection -> {
              boolean found = super.dropTable(identifier, false);
              pins.remove(connection, identifier);
              return found;
            });
    if (dropped && last != null) {
      CatalogUtil.dropTableData(operations.io(), last);
    }
    return dropped;
  }

  @Override
  public void renameTable(TableIdentifier from, TableIdentifier to) {
    if (!pins.exist() || from.equals(to)) {
      super.renameTable(from, to);
      return;
    }
    pins.inTransaction(
        connection -> {
          super.renameTable(from, to);
          pins.move(connection, from, to);
          return null;
        });
  }
}
