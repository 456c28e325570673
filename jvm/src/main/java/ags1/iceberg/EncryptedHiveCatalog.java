package ags1.iceberg;

import java.util.HashMap;
import java.util.Map;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.encryption.PlaintextEncryptionManager;
import org.apache.iceberg.hive.HiveCatalog;
import org.apache.iceberg.hive.HiveTableOperations;
import org.apache.iceberg.io.FileIO;

/**
 * Iceberg's catalog in a Hive metastore. Its own encryption is not used: it is not for several
 * threads, and each of its commits adds all keys that it has ever seen. Threads may share it.
 */
public final class EncryptedHiveCatalog extends HiveCatalog {
  private CatalogRules rules; // set once, by initialize()

  @Override
  public void initialize(String name, Map<String, String> properties) {
    rules = new CatalogRules(properties);
    Map<String, String> given = new HashMap<>(properties);
    given.remove(CatalogProperties.ENCRYPTION_KMS_TYPE);
    given.remove(CatalogProperties.ENCRYPTION_KMS_IMPL);
    super.initialize(name, given);
  }

  @Override
  public TableOperations newTableOps(TableIdentifier identifier) {
    HiveTableOperations plain = (HiveTableOperations) super.newTableOps(identifier);
    FileIO files = plain.io();
    return rules.over(
        new HiveTableOperations(
            getConf(), plain.metaClients(), files, null, name(), plain.database(), plain.table()) {
          @Override public FileIO io() { return files; }

          @Override
          public EncryptionManager encryption() { return PlaintextEncryptionManager.instance(); }
        });
  }
}
