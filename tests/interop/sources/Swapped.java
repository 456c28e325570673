package ags1.iceberg;

import java.io.IOException;
import java.io.InputStream;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.Schema;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.inmemory.InMemoryInputFile;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.types.Types;

/** A storage in which somebody changes each metadata.json as soon as it is written. */
public final class Swapped extends HadoopFileIO {
  private static String from;
  private static String to;

  public Swapped() {}

  @Override
  public InputFile newInputFile(String path) {
    try (InputStream file = super.newInputFile(path).newStream()) {
      String text = new String(file.readAllBytes()).replace(from, to);
      return new InMemoryInputFile(path, text.getBytes());
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Creates an encrypted table and loads it; in its metadata {@code from} becomes {@code to}. */
  static Object created(JsonNode arguments) {
    from = arguments.get("from").asText();
    to = arguments.get("to").asText();
    Map<String, String> properties = new HashMap<>();
    arguments.get("catalog").fields().forEachRemaining(
        one -> properties.put(one.getKey(), one.getValue().asText()));
    properties.put(CatalogProperties.FILE_IO_IMPL, Swapped.class.getName());
    try (EncryptedJdbcCatalog catalog = new EncryptedJdbcCatalog()) {
      catalog.setConf(new Configuration());
      catalog.initialize("lake", properties);
      Namespace namespace = Namespace.of("db");
      if (!catalog.namespaceExists(namespace)) {
        catalog.createNamespace(namespace);
      }
      TableIdentifier name = TableIdentifier.of(namespace, "t");
      Schema schema = new Schema(Types.NestedField.optional(1, "price", Types.LongType.get()));
      Map<String, String> given = Map.of("format-version", "3", "encryption.key-id", "a");
      if (!catalog.tableExists(name)) {
        catalog.buildTable(name, schema).withProperties(given).create();
      }
      return catalog.loadTable(name).location();
    }
  }
}
