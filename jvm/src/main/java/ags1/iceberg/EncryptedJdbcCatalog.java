package ags1.iceberg;

import java.util.Map;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.jdbc.JdbcCatalog;

/** Iceberg's catalog in a SQL database, which PyIceberg's {@code SqlCatalog} shares. */
public final class EncryptedJdbcCatalog extends JdbcCatalog {
  private CatalogRules rules;

  @Override
  public void initialize(String name, Map<String, String> properties) {
    rules = new CatalogRules(properties);
    super.initialize(name, properties);
  }

  @Override
  protected TableOperations newTableOps(TableIdentifier identifier) {
    return rules.over(super.newTableOps(identifier));
  }
}
