package ags1.interop;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.PartitionData;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SingleValueParser;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.data.GenericFileWriterFactory;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.IdentityPartitionConverters;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.deletes.EqualityDeleteWriter;
import org.apache.iceberg.encryption.EncryptedOutputFile;
import org.apache.iceberg.encryption.EncryptingFileIO;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.encryption.EncryptionUtil;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.iceberg.types.Conversions;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.ByteBuffers;
import org.apache.iceberg.util.DateTimeUtil;

/**
 * Writes rows and equality deletes into a table, and reads rows, where Spark cannot.
 *
 * <p>Rows are JSON: objects with values as the specification's "JSON single-value serialization"
 * has them, but NaN, infinities and -0.0 as strings. A column that is left out is null. {@code
 * partition} is a path ({@code p=1}), null for a table without partitions.
 */
public final class TableRows {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static long files = 0;

  /** Commits a data file of these rows. */
  public void append(Table table, String format, String partition, String rows)
      throws IOException {
    FileFormat kind = FileFormat.fromString(format);
    StructLike key = key(table.spec(), partition);
    DataWriter<Record> writer =
        new GenericFileWriterFactory.Builder(table)
            .dataFileFormat(kind)
            .dataSchema(table.schema())
            .build()
            .newDataWriter(newFile(table, kind, key), table.spec(), key);
    try (writer) {
      records(table.schema(), rows).forEach(writer::write);
    }
    table.newAppend().appendFile(writer.toDataFile()).commit();
  }

  /**
   * Commits a file that deletes what equals one of these rows in the columns of {@code ids}, which
   * may be of any of the table's schemas.
   */
  public void delete(
      Table table, int specId, String format, String partition, List<Integer> ids, String rows)
      throws IOException {
    FileFormat kind = FileFormat.fromString(format);
    PartitionSpec spec = table.specs().get(specId);
    StructLike key = key(spec, partition);
    Schema columns = columns(table, ids);
    EqualityDeleteWriter<Record> writer =
        new GenericFileWriterFactory.Builder(table)
            .deleteFileFormat(kind)
            .equalityFieldIds(ids.stream().mapToInt(Integer::intValue).toArray())
            .equalityDeleteRowSchema(columns)
            .build()
            .newEqualityDeleteWriter(newFile(table, kind, key), spec, key);
    try (writer) {
      records(columns, rows).forEach(writer::write);
    }
    table.newRowDelta().addDeletes(writer.toDeleteFile()).commit();
  }

  /** Opens an encrypted table from its metadata file, to be read, without any catalog. */
  public Table open(String metadataFile, String kmsImplementation) {
    FileIO files = new HadoopFileIO(new Configuration());
    TableMetadata metadata = TableMetadataParser.read(files, metadataFile);
    EncryptionManager manager =
        EncryptionUtil.createEncryptionManager(
            metadata.encryptionKeys(),
            metadata.properties(),
            EncryptionUtil.createKmsClient(
                Map.of(CatalogProperties.ENCRYPTION_KMS_IMPL, kmsImplementation)));
    return new BaseTable(
        new ReadOnly(metadata, EncryptingFileIO.combine(files, manager), manager), metadataFile);
  }

  /**
   * Returns the rows of a table without deletion vectors, as JSON: a list for each row, of values as
   * Java prints them; those of bytes in hex.
   */
  public String rows(Table table) throws IOException {
    List<List<String>> rows = new ArrayList<>();
    try (CloseableIterable<Record> records = IcebergGenerics.read(table).build()) {
      for (Record record : records) {
        List<String> row = new ArrayList<>();
        for (int at = 0; at < record.size(); at++) {
          row.add(printed(record.get(at)));
        }
        rows.add(row);
      }
    }
    return JSON.writeValueAsString(rows);
  }

  private static String printed(Object value) {
    if (value instanceof ByteBuffer bytes) {
      return HexFormat.of().formatHex(ByteBuffers.toByteArray(bytes));
    }
    return value instanceof byte[] bytes
        ? HexFormat.of().formatHex(bytes)
        : Objects.toString(value, null);
  }

  private record ReadOnly(TableMetadata current, FileIO io, EncryptionManager encryption)
      implements TableOperations {
    @Override
    public TableMetadata refresh() {
      return current;
    }

    @Override
    public void commit(TableMetadata base, TableMetadata metadata) {
      throw new UnsupportedOperationException();
    }

    @Override
    public String metadataFileLocation(String fileName) {
      throw new UnsupportedOperationException();
    }

    @Override
    public LocationProvider locationProvider() {
      throw new UnsupportedOperationException();
    }
  }

  private static EncryptedOutputFile newFile(Table table, FileFormat format, StructLike key) {
    OutputFileFactory factory =
        OutputFileFactory.builderFor(table, 0, ++files).format(format).build();
    return key == null ? factory.newOutputFile() : factory.newOutputFile(key);
  }

  private static StructLike key(PartitionSpec spec, String partition) {
    if (partition == null) {
      return null;
    }
    PartitionData key = new PartitionData(spec.partitionType());
    String[] parts = partition.split("/", -1);
    for (int at = 0; at < parts.length; at++) {
      String value = parts[at].substring(parts[at].indexOf('=') + 1);
      Type type = spec.partitionType().fields().get(at).type();
      key.set(at, Conversions.fromPartitionString(type, value));
    }
    return key;
  }

  private static Schema columns(Table table, List<Integer> ids) {
    List<Types.NestedField> fields = new ArrayList<>();
    for (int id : ids) {
      Types.NestedField found = table.schema().findField(id);
      for (Schema old : table.schemas().values()) {
        found = found == null ? old.findField(id) : found;
      }
      fields.add(found);
    }
    return new Schema(fields);
  }

  private static List<Record> records(Schema schema, String rows) throws IOException {
    List<Record> records = new ArrayList<>();
    for (JsonNode row : JSON.readTree(rows)) {
      Record record = GenericRecord.create(schema);
      Iterator<Map.Entry<String, JsonNode>> values = row.fields();
      while (values.hasNext()) {
        Map.Entry<String, JsonNode> value = values.next();
        Type type = schema.findType(value.getKey());
        record.setField(value.getKey(), generic(type, value.getValue()));
      }
      records.add(record);
    }
    return records;
  }

  private static Object generic(Type type, JsonNode value) {
    if (value.isNull()) {
      return null;
    } else if (value.isTextual() && type.typeId() == Type.TypeID.DOUBLE) {
      return Double.valueOf(value.asText());
    } else if (value.isTextual() && type.typeId() == Type.TypeID.FLOAT) {
      return Float.valueOf(value.asText());
    }
    Object parsed = SingleValueParser.fromJson(type, value);
    return switch (type.typeId()) {
      case FIXED -> ByteBuffers.toByteArray((ByteBuffer) parsed);
      case TIMESTAMP_NANO ->
          ((Types.TimestampNanoType) type).shouldAdjustToUTC()
              ? DateTimeUtil.timestamptzFromNanos((Long) parsed)
              : DateTimeUtil.timestampFromNanos((Long) parsed);
      default -> IdentityPartitionConverters.convertConstant(type, parsed);
    };
  }
}
