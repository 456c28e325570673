package ags1.iceberg;

import java.io.IOException;
import java.util.HexFormat;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.io.SeekableInputStream;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;

/** The files that our plug-in reads and writes in an encrypted table. */
final class Guard {
  private Guard() {}

  static Object read(JsonNode arguments) throws IOException {
    String path = arguments.get("path").asText();
    try (SeekableInputStream stream = io(arguments).newInputFile(path).newStream()) {
      return HexFormat.of().formatHex(stream.readAllBytes());
    }
  }

  /** Writes pieces of a size. */
  static Object write(JsonNode arguments) throws IOException {
    byte[] bytes = HexFormat.of().parseHex(arguments.get("bytes").asText());
    int size = arguments.get("size").asInt();
    FileIO io = io(arguments);
    try (PositionOutputStream stream = io.newOutputFile(arguments.get("path").asText()).create()) {
      for (int start = 0; start < bytes.length; start += size) {
        stream.write(bytes, start, Math.min(size, bytes.length - start));
      }
      return stream.getPos();
    }
  }

  private static FileIO io(JsonNode arguments) {
    boolean required = arguments.has("required") && arguments.get("required").asBoolean();
    return GuardedFileIO.around(new HadoopFileIO(new Configuration()), required);
  }
}
