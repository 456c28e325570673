package org.apache.iceberg.encryption;

import java.io.File;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import org.apache.iceberg.Files;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.util.ByteBuffers;

/** Cases of the corpus, as Java handles them: files by their paths, bytes in hex. */
public final class CorpusCases {
  private CorpusCases() {}

  /**
   * Decrypts the AGS1 file {@code path} to {@code output}, with {@code key}, {@code aad_prefix} and
   * {@code file_length}, which may both be null. Without a length, the file's size is taken.
   */
  static Object readStream(JsonNode arguments) throws Exception {
    byte[] key = HexFormat.of().parseHex(arguments.get("key").asText());
    byte[] prefix = bytes(arguments, "aad_prefix");
    InputFile stored = Files.localInput(arguments.get("path").asText());
    JsonNode length = arguments.get("file_length");
    AesGcmInputFile file =
        length.isNull()
            ? new AesGcmInputFile(stored, key, prefix)
            : new AesGcmInputFile(stored, key, prefix, Long.valueOf(length.asText()));
    try (InputStream in = file.newStream();
        OutputStream out =
            java.nio.file.Files.newOutputStream(Path.of(arguments.get("output").asText()))) {
      in.transferTo(out);
    }
    return null;
  }

  /** Encrypts the file {@code path} to {@code output}. */
  static Object writeStream(JsonNode arguments) throws Exception {
    byte[] key = HexFormat.of().parseHex(arguments.get("key").asText());
    File target = new File(arguments.get("output").asText());
    AesGcmOutputFile file =
        new AesGcmOutputFile(Files.localOutput(target), key, bytes(arguments, "aad_prefix"));
    try (OutputStream out = file.createOrOverwrite()) {
      java.nio.file.Files.copy(Path.of(arguments.get("path").asText()), out);
    }
    return null;
  }

  /** Parses key metadata, {@code bytes}. */
  static Object parseKeyMetadata(JsonNode arguments) {
    StandardKeyMetadata parsed =
        StandardKeyMetadata.parse(ByteBuffer.wrap(bytes(arguments, "bytes")));
    Map<String, Object> found = new HashMap<>();
    found.put("key", hex(parsed.encryptionKey()));
    found.put("aad_prefix", hex(parsed.aadPrefix()));
    Long length = parsed.fileLength();
    found.put("file_length", length == null ? null : length.toString());
    return found;
  }

  private static byte[] bytes(JsonNode arguments, String name) {
    JsonNode text = arguments.get(name);
    return text.isNull() ? null : HexFormat.of().parseHex(text.asText());
  }

  private static String hex(ByteBuffer found) {
    return found == null ? null : HexFormat.of().formatHex(ByteBuffers.toByteArray(found));
  }
}
