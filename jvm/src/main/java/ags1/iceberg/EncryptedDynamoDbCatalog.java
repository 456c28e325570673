package ags1.iceberg;

import java.util.Map;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.aws.dynamodb.DynamoDbCatalog;
import org.apache.iceberg.catalog.TableIdentifier;

/** Iceberg's catalog in Amazon DynamoDB. Threads may share it. */
public final class EncryptedDynamoDbCatalog extends DynamoDbCatalog {
  private CatalogRules rules; // set once, by initialize()

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
