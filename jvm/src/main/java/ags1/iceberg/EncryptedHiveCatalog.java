package ags1.iceberg;

import ags1.iceberg.kms.KmsClients;
import java.util.Map;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.hive.HiveCatalog;

/** Iceberg's catalog in a Hive metastore, which encrypts by itself, with more checks and KMSs. */
public final class EncryptedHiveCatalog extends HiveCatalog {
  private CatalogRules rules;

  @Override
  public void initialize(String name, Map<String, String> properties) {
    rules = new CatalogRules(properties);
    super.initialize(name, KmsClients.withImpl(properties));
  }

  @Override
  public TableOperations newTableOps(TableIdentifier identifier) {
    return rules.over(super.newTableOps(identifier));
  }
}
