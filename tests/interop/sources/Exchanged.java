package ags1.iceberg.kms;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;

/** Private files that other threads or programs disturb. */
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

  /** Reads a file as often as told, while other threads open and close files. */
  static Object crowded(JsonNode arguments) throws InterruptedException {
    Path path = Path.of(arguments.get("path").asText());
    AtomicBoolean done = new AtomicBoolean();
    Thread[] others = new Thread[4];
    for (int i = 0; i < others.length; i++) {
      others[i] = new Thread(() -> openAndClose(path, done));
      others[i].start();
    }
    try {
      String last = "";
      for (int i = 0; i < arguments.get("times").asInt(); i++) {
        last = new String(PrivateFile.read(path, 1 << 10, "file", PrivateFile.READ_OR_WRITE));
      }
      return last;
    } finally {
      done.set(true);
      for (Thread other : others) {
        other.join();
      }
    }
  }

  private static void openAndClose(Path path, AtomicBoolean done) {
    while (!done.get()) {
      try (FileChannel first = FileChannel.open(path);
          FileChannel second = FileChannel.open(path)) {
        first.position(second.position());
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
  }
}
