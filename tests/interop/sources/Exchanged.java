package ags1.iceberg.kms;

import java.io.IOException;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;

/** A private file that is exchanged after it was opened, and before it is checked. */
final class Exchanged {
  private Exchanged() {}

  /** Checks and reads the file that was there first. {@code other} takes its path meanwhile. */
  static Object check(JsonNode arguments) throws IOException {
    Path path = Path.of(arguments.get("path").asText());
    Path other = Path.of(arguments.get("other").asText());
    Path aside = Path.of(path + ".aside");
    try (FileChannel file = FileChannel.open(path)) {
      Files.move(path, aside);
      Files.copy(other, path, StandardCopyOption.COPY_ATTRIBUTES);
      PrivateFile.check(file, path, "file", PrivateFile.READ_OR_WRITE);
      return new String(Channels.newInputStream(file).readAllBytes());
    } finally {
      Files.move(aside, path, StandardCopyOption.REPLACE_EXISTING);
    }
  }
}
