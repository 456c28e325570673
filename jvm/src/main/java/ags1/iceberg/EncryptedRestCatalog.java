package ags1.iceberg;

import java.util.HashMap;
import java.util.Map;
import java.util.function.Function;
import org.apache.iceberg.BaseMetadataTable;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.BaseTransaction;
import org.apache.iceberg.MetadataTableType;
import org.apache.iceberg.MetadataTableUtils;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SortOrder;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.Transaction;
import org.apache.iceberg.Transactions;
import org.apache.iceberg.catalog.Catalog.TableBuilder;
import org.apache.iceberg.catalog.LoadContext;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.NoSuchTableException;
import org.apache.iceberg.rest.RESTCatalog;
import org.apache.iceberg.rest.RESTClient;
import org.apache.iceberg.rest.RESTSessionCatalog;

/**
 * Iceberg's client of the REST protocol. Scans of encrypted tables are planned here and not by the
 * server, which has no keys.
 */
public final class EncryptedRestCatalog extends RESTCatalog {
  @Override
  protected RESTSessionCatalog newSessionCatalog(
      Function<Map<String, String>, RESTClient> clientBuilder) {
    return new EncryptedSessions(clientBuilder);
  }

  private static final class EncryptedSessions extends RESTSessionCatalog {
    private CatalogRules rules;

    private EncryptedSessions(Function<Map<String, String>, RESTClient> clientBuilder) {
      super(clientBuilder, null);
    }

    @Override
    public void initialize(String name, Map<String, String> properties) {
      rules = new CatalogRules(properties); // those of the caller, not those of the server
      super.initialize(name, properties);
    }

    @Override
    public Table loadTable(SessionContext context, TableIdentifier identifier) {
      return over(super.loadTable(context, identifier), identifier.name());
    }

    // Called by 1.12 and later.
    @Override
    public Table loadTable(
        SessionContext context, TableIdentifier identifier, LoadContext loadContext) {
      return over(super.loadTable(context, identifier, loadContext), identifier.name());
    }

    @Override
    public Table registerTable(
        SessionContext context, TableIdentifier identifier, String location, boolean overwrite) {
      Table registered = super.registerTable(context, identifier, location, overwrite);
      return over(registered, identifier.name());
    }

    @Override
    public TableBuilder buildTable(
        SessionContext context, TableIdentifier identifier, Schema schema) {
      return new Builder(super.buildTable(context, identifier, schema), identifier, schema, rules);
    }

    private Table over(Table table, String name) {
      return table instanceof BaseMetadataTable metadata
          ? MetadataTableUtils.createMetadataTableInstance(
              EncryptedRestCatalog.over(metadata.table(), rules), MetadataTableType.from(name))
          : EncryptedRestCatalog.over((BaseTable) table, rules);
    }
  }

  private static BaseTable over(BaseTable table, CatalogRules rules) {
    if (table.operations() instanceof EncryptedOperations) {
      return table;
    }
    TableOperations operations = rules.over(table.operations());
    // An unencrypted table whose scans the server plans is of another class, and stays as it is.
    return rules.keyId(operations.current()) == null && table.getClass() != BaseTable.class
        ? table
        : new BaseTable(operations, table.name(), table.reporter());
  }

  private record Builder(
      TableBuilder inner,
      TableIdentifier identifier,
      Schema schema,
      CatalogRules rules,
      Map<String, String> properties)
      implements TableBuilder {
    private Builder(
        TableBuilder inner, TableIdentifier identifier, Schema schema, CatalogRules rules) {
      this(inner, identifier, schema, rules, new HashMap<>());
    }

    @Override
    public TableBuilder withPartitionSpec(PartitionSpec spec) {
      inner.withPartitionSpec(spec);
      return this;
    }

    @Override
    public TableBuilder withSortOrder(SortOrder order) {
      inner.withSortOrder(order);
      return this;
    }

    @Override
    public TableBuilder withLocation(String location) {
      inner.withLocation(location);
      return this;
    }

    @Override
    public TableBuilder withProperties(Map<String, String> given) {
      if (given != null) {
        given.forEach(this::withProperty);
      }
      return this;
    }

    @Override
    public TableBuilder withProperty(String name, String value) {
      properties.put(name, value);
      inner.withProperty(name, value);
      return this;
    }

    @Override
    public Table create() {
      // In this call the server creates the table, so it is checked before.
      PartitionSpec spec = PartitionSpec.unpartitioned();
      rules.checkNew(
          TableMetadata.newTableMetadata(schema, spec, identifier.toString(), properties));
      return EncryptedRestCatalog.over((BaseTable) inner.create(), rules);
    }

    @Override
    public Transaction createTransaction() {
      return over(inner.createTransaction());
    }

    @Override
    public Transaction replaceTransaction() {
      return over(inner.replaceTransaction());
    }

    @Override
    public Transaction createOrReplaceTransaction() {
      try {
        return replaceTransaction();
      } catch (NoSuchTableException none) {
        return createTransaction();
      }
    }

    private Transaction over(Transaction transaction) {
      BaseTransaction begun = (BaseTransaction) transaction;
      TableOperations operations = rules.over(begun.underlyingOps());
      String name = begun.tableName();
      return operations.current() == null
          ? Transactions.createTableTransaction(name, operations, begun.currentMetadata())
          : Transactions.replaceTableTransaction(name, operations, begun.currentMetadata());
    }
  }
}
