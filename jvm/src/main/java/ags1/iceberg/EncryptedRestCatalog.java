package ags1.iceberg;

import java.io.Closeable;
import java.io.IOException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;
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
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.SupportsNamespaces;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.catalog.ViewCatalog;
import org.apache.iceberg.exceptions.NoSuchTableException;
import org.apache.iceberg.hadoop.Configurable;
import org.apache.iceberg.rest.RESTCatalog;
import org.apache.iceberg.view.View;
import org.apache.iceberg.view.ViewBuilder;

/**
 * Iceberg's client of the REST protocol. It delegates, because {@link RESTCatalog} makes the
 * operations of its tables in places that a subclass cannot reach. Scans of encrypted tables are
 * planned here and not by the server, which has no keys.
 */
public final class EncryptedRestCatalog
    implements Catalog, ViewCatalog, SupportsNamespaces, Configurable<Object>, Closeable {
  private final RESTCatalog rest = new RESTCatalog();
  private CatalogRules rules;

  @Override
  public void initialize(String name, Map<String, String> properties) {
    rules = new CatalogRules(properties);
    // A server's configuration could replace the KMS, if it were looked for there.
    rest.initialize(name, properties);
  }

  @Override
  public Table loadTable(TableIdentifier identifier) {
    Table table = rest.loadTable(identifier);
    if (table instanceof BaseMetadataTable metadataTable) {
      Table encrypted = over(metadataTable.table());
      MetadataTableType type = MetadataTableType.from(identifier.name());
      return MetadataTableUtils.createMetadataTableInstance(encrypted, type);
    }
    return over((BaseTable) table);
  }

  @Override
  public Table registerTable(TableIdentifier identifier, String metadataFileLocation) {
    return over((BaseTable) rest.registerTable(identifier, metadataFileLocation));
  }

  @Override
  public TableBuilder buildTable(TableIdentifier identifier, Schema schema) {
    return new Builder(identifier, schema);
  }

  private BaseTable over(BaseTable table) {
    TableOperations operations = rules.over(table.operations());
    // An unencrypted table stays as it is, so that the server may plan its scans.
    return rules.keyId(operations.current()) == null
        ? table
        : new BaseTable(operations, table.name(), table.reporter());
  }

  private Transaction over(Transaction transaction, String name) {
    BaseTransaction begun = (BaseTransaction) transaction;
    TableOperations operations = rules.over(begun.underlyingOps());
    return operations.current() == null
        ? Transactions.createTableTransaction(name, operations, begun.startMetadata())
        : Transactions.replaceTableTransaction(name, operations, begun.startMetadata());
  }

  private final class Builder implements TableBuilder {
    private final TableIdentifier identifier;
    private final Schema schema;
    private final TableBuilder builder;
    private final Map<String, String> properties = new HashMap<>();

    private Builder(TableIdentifier identifier, Schema schema) {
      this.identifier = identifier;
      this.schema = schema;
      this.builder = rest.buildTable(identifier, schema);
    }

    @Override
    public TableBuilder withPartitionSpec(PartitionSpec spec) {
      builder.withPartitionSpec(spec);
      return this;
    }

    @Override
    public TableBuilder withSortOrder(SortOrder order) {
      builder.withSortOrder(order);
      return this;
    }

    @Override
    public TableBuilder withLocation(String location) {
      builder.withLocation(location);
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
      builder.withProperty(name, value);
      return this;
    }

    @Override
    public Table create() {
      // The server creates the table in this call, so it is checked before.
      rules.checkNew(
          TableMetadata.newTableMetadata(
              schema, PartitionSpec.unpartitioned(), identifier.toString(), properties));
      return over((BaseTable) builder.create());
    }

    @Override
    public Transaction createTransaction() {
      return checked(builder::createTransaction);
    }

    @Override
    public Transaction replaceTransaction() {
      return checked(builder::replaceTransaction);
    }

    @Override
    public Transaction createOrReplaceTransaction() {
      try {
        return replaceTransaction();
      } catch (NoSuchTableException none) {
        return createTransaction();
      }
    }

    private Transaction checked(Supplier<Transaction> begin) {
      return over(begin.get(), identifier.toString());
    }
  }

  // What follows only delegates.

  @Override
  public String name() {
    return rest.name();
  }

  @Override
  public List<TableIdentifier> listTables(Namespace namespace) {
    return rest.listTables(namespace);
  }

  @Override
  public boolean tableExists(TableIdentifier identifier) {
    return rest.tableExists(identifier);
  }

  @Override
  public void invalidateTable(TableIdentifier identifier) {
    rest.invalidateTable(identifier);
  }

  @Override
  public boolean dropTable(TableIdentifier identifier, boolean purge) {
    return rest.dropTable(identifier, purge);
  }

  @Override
  public void renameTable(TableIdentifier from, TableIdentifier to) {
    rest.renameTable(from, to);
  }

  @Override
  public void createNamespace(Namespace namespace, Map<String, String> properties) {
    rest.createNamespace(namespace, properties);
  }

  @Override
  public List<Namespace> listNamespaces(Namespace namespace) {
    return rest.listNamespaces(namespace);
  }

  @Override
  public boolean namespaceExists(Namespace namespace) {
    return rest.namespaceExists(namespace);
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(Namespace namespace) {
    return rest.loadNamespaceMetadata(namespace);
  }

  @Override
  public boolean dropNamespace(Namespace namespace) {
    return rest.dropNamespace(namespace);
  }

  @Override
  public boolean setProperties(Namespace namespace, Map<String, String> properties) {
    return rest.setProperties(namespace, properties);
  }

  @Override
  public boolean removeProperties(Namespace namespace, Set<String> names) {
    return rest.removeProperties(namespace, names);
  }

  @Override
  public List<TableIdentifier> listViews(Namespace namespace) {
    return rest.listViews(namespace);
  }

  @Override
  public View loadView(TableIdentifier identifier) {
    return rest.loadView(identifier);
  }

  @Override
  public ViewBuilder buildView(TableIdentifier identifier) {
    return rest.buildView(identifier);
  }

  @Override
  public boolean dropView(TableIdentifier identifier) {
    return rest.dropView(identifier);
  }

  @Override
  public void renameView(TableIdentifier from, TableIdentifier to) {
    rest.renameView(from, to);
  }

  @Override
  public boolean viewExists(TableIdentifier identifier) {
    return rest.viewExists(identifier);
  }

  @Override
  public void setConf(Object conf) {
    rest.setConf(conf);
  }

  @Override
  public void close() throws IOException {
    rest.close();
  }
}
