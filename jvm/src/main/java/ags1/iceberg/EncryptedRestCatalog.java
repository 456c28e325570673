package ags1.iceberg;

import ags1.iceberg.kms.KmsClients;
import ags1.iceberg.kms.PrivateFile;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Function;
import org.apache.iceberg.BaseMetadataTable;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.BaseTransaction;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.MetadataTableType;
import org.apache.iceberg.MetadataTableUtils;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.Transaction;
import org.apache.iceberg.Transactions;
import org.apache.iceberg.catalog.Catalog.TableBuilder;
import org.apache.iceberg.catalog.LoadContext;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.rest.RESTCatalog;
import org.apache.iceberg.rest.RESTClient;
import org.apache.iceberg.rest.RESTSessionCatalog;
import org.apache.iceberg.util.PropertyUtil;

/**
 * Iceberg's client of the REST protocol. Scans of encrypted tables are planned here and not by the
 * server, which has no keys. The properties {@code token-file} and {@code credential-file} name files
 * for Iceberg's {@code token} and {@code credential}, which Spark would show. Threads may share the
 * catalog; a builder of a table belongs to one thread.
 */
public final class EncryptedRestCatalog extends RESTCatalog {
  @Override
  protected RESTSessionCatalog newSessionCatalog(
      Function<Map<String, String>, RESTClient> clientBuilder) {
    return new EncryptedSessions(clientBuilder);
  }

  private static final class EncryptedSessions extends RESTSessionCatalog {
    private CatalogRules rules; // set once, by initialize()

    private EncryptedSessions(Function<Map<String, String>, RESTClient> clientBuilder) {
      super(clientBuilder, null);
    }

    @Override
    public void initialize(String name, Map<String, String> properties) {
      rules = new CatalogRules(properties); // those of the caller, not those of the server
      Map<String, String> given = new HashMap<>(properties);
      for (String secret : List.of("token", "credential")) {
        String file = given.remove(secret + "-file");
        KmsClients.refuseIf(
            file != null && given.put(secret, PrivateFile.credential(file)) != null,
            "both '%s' and '%s-file' are given: give one", secret, secret);
      }
      super.initialize(name, given);
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

    /** Returns a builder whose results are encrypted. */
    @Override
    public TableBuilder buildTable(
        SessionContext context, TableIdentifier identifier, Schema schema) {
      TableBuilder inner = super.buildTable(context, identifier, schema);
      Map<String, String> properties = new HashMap<>();
      InvocationHandler handler =
          (builder, method, arguments) -> {
            switch (method.getName()) {
              case "withProperty" -> properties.put((String) arguments[0], (String) arguments[1]);
              case "withProperties" -> ((Map<?, ?>) Objects.requireNonNullElse(arguments[0], Map.of()))
                  .forEach((name, value) -> properties.put((String) name, (String) value));
              // In this call the server creates the table, so it is checked before.
              case "create" -> rules.checkNew(
                  TableMetadata.newTableMetadata(
                      schema, PartitionSpec.unpartitioned(), identifier.toString(),
                      withThoseOfCatalog(properties)));
              default -> {}
            }
            try {
              Object made = method.invoke(inner, arguments);
              return made instanceof BaseTransaction begun
                  ? over(begun)
                  : made instanceof BaseTable created ? over(created) : builder;
            } catch (InvocationTargetException failure) {
              throw failure.getCause();
            }
          };
      Class<?>[] types = {TableBuilder.class};
      return (TableBuilder)
          Proxy.newProxyInstance(TableBuilder.class.getClassLoader(), types, handler);
    }

    /** Returns the properties that a table will have which is created with those that are given. */
    private Map<String, String> withThoseOfCatalog(Map<String, String> given) {
      Map<String, String> all =
          new HashMap<>(
              PropertyUtil.propertiesWithPrefix(
                  properties(), CatalogProperties.TABLE_DEFAULT_PREFIX));
      all.putAll(given);
      all.putAll(
          PropertyUtil.propertiesWithPrefix(properties(), CatalogProperties.TABLE_OVERRIDE_PREFIX));
      return all;
    }

    private Table over(Table table, String name) {
      return table instanceof BaseMetadataTable metadata
          ? MetadataTableUtils.createMetadataTableInstance(
              over(metadata.table()), MetadataTableType.from(name))
          : over((BaseTable) table);
    }

    private BaseTable over(BaseTable table) {
      if (table.operations() instanceof EncryptedOperations) {
        return table;
      }
      TableOperations operations = rules.over(table.operations());
      // An unencrypted table whose scans the server plans is of another class, and stays as it is.
      return rules.keyId(operations.current()) == null && table.getClass() != BaseTable.class
          ? table
          : new BaseTable(operations, table.name(), table.reporter());
    }

    private Transaction over(BaseTransaction begun) {
      TableOperations operations = rules.over(begun.underlyingOps());
      String name = begun.tableName();
      return operations.current() == null
          ? Transactions.createTableTransaction(name, operations, begun.currentMetadata())
          : Transactions.replaceTableTransaction(name, operations, begun.currentMetadata());
    }
  }
}
