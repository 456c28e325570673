package ags1.iceberg;

import java.util.HashMap;
import java.util.Map;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.NotFoundException;
import org.apache.iceberg.jdbc.JdbcCatalog;

/** Iceberg's catalog in a SQL database, which PyIceberg's {@code SqlCatalog} shares, with pins. */
public final class EncryptedJdbcCatalog extends JdbcCatalog {
  // One, which initialize() makes, for a function that the constructor above asks for.
  private final JdbcPins[] pins;
  private CatalogRules rules;

  public EncryptedJdbcCatalog() { this(new JdbcPins[1]); }

  private EncryptedJdbcCatalog(JdbcPins[] pins) {
    super(null, properties -> pins[0], true);
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
    pins[0] = new JdbcPins(name == null ? name() : name, given);
    super.initialize(name, given);
  }

  @Override
  protected TableOperations newTableOps(TableIdentifier identifier) {
    return rules.over(new PinnedOperations(super.newTableOps(identifier), pins[0], identifier));
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
        pins[0].inTransaction(
            connection -> {
              pins[0].remove(connection, identifier);
              return super.dropTable(identifier, false);
            });
    if (dropped && last != null) {
      CatalogUtil.dropTableData(operations.io(), last);
    }
    return dropped;
  }

  @Override
  public void renameTable(TableIdentifier from, TableIdentifier to) {
    pins[0].inTransaction(
        connection -> {
          super.renameTable(from, to);
          Map<String, String> pinned = pins[0].read(from);
          pins[0].remove(connection, from);
          pins[0].write(connection, to, pinned);
          return null;
        });
  }
}
