package ags1.iceberg.kms;

import static java.nio.charset.StandardCharsets.ISO_8859_1;

import com.sun.security.auth.module.UnixSystem;
import java.io.IOException;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.ToIntFunction;

/**
 * Small private files, such as a keyring or a passphrase. One that others may read or write is
 * refused, as ssh refuses keys. The open file is checked, and not what has its path by now.
 */
public final class PrivateFile {
  static final String CREDENTIAL = "[\\x21-\\x7e]{1,65536}";
  static final int READ_OR_WRITE = 0077;
  static final int WRITE = 0022;
  static final int NOTHING = 0;
  static final int ANY_OWNER = -1;

  // Linux has a file there for each open one, whose text begins with "pos:" and the position.
  private static final Path DESCRIPTORS = Path.of("/proc/self/fdinfo");

  private PrivateFile() {}

  /** Returns the file's bytes; null if there is no file. {@code forbidden} is a mode of others. */
  static byte[] read(Path path, int maxSize, String what, int forbidden) {
    return read(path, maxSize, what, content -> forbidden);
  }

  /** As above; what is forbidden to others depends on the file's content. */
  static byte[] read(Path path, int maxSize, String what, ToIntFunction<byte[]> forbidden) {
    try (FileChannel file = FileChannel.open(path)) {
      byte[] bytes = Channels.newInputStream(file).readNBytes(maxSize + 1);
      KmsException.when(bytes.length > maxSize, "the %s %s is too large", what, path);
      int mode = forbidden.applyAsInt(bytes);
      if (mode != ANY_OWNER) {
        check(file, path, what, mode);
      }
      return bytes;
    } catch (NoSuchFileException missing) {
      return null;
    } catch (IOException error) {
      throw new KmsException("cannot read the %s %s (%s)", what, path, error.getClass().getName());
    }
  }

  /** Returns a token or the like from a file, whose owner may let others read it. */
  public static String credential(String path) {
    byte[] bytes = read(expanded(path), 1 << 17, "credential", ANY_OWNER);
    String text = bytes == null ? "" : new String(bytes, ISO_8859_1).strip();
    KmsException.when(!text.matches(CREDENTIAL), "there is no credential in %s", path);
    return text;
  }

  /** Returns a path with the home folder of this process's user for a {@code ~} in front. */
  static Path expanded(String path) {
    String home = Objects.requireNonNullElse(System.getenv("HOME"), System.getProperty("user.home"));
    return Path.of(path.matches("~(/.*)?") ? home + path.substring(1) : path);
  }

  /** Checks the owner and the mode of an open file, whatever lies under its path by now. */
  static void check(FileChannel file, Path path, String what, int forbidden) throws IOException {
    Path open = Files.isDirectory(DESCRIPTORS) ? descriptor(file) : path;
    Map<String, Object> attributes = Files.readAttributes(open, "unix:uid,mode");
    long uid = Integer.toUnsignedLong((Integer) attributes.get("uid"));
    boolean mine = uid == new UnixSystem().getUid();
    KmsException.when(
        !mine && uid != 0,
        "the %s %s belongs to another user (uid %s), who can change it: use a file of your own",
        what, path, uid);
    int mode = (Integer) attributes.get("mode") & 07777;
    KmsException.when(
        (mode & (mine ? forbidden : forbidden & WRITE)) != 0,
        "the %s %s is open to others (mode %04o), who may have read or changed it: run chmod 600 "
            + "on it, or, if it is open for reading only, set kms.allow-readable-files to true",
        what, path, mode);
  }

  /** Returns the path of an open file's descriptor. Java does not say its number: a position does. */
  private static Path descriptor(FileChannel file) throws IOException {
    long position = ThreadLocalRandom.current().nextLong(1L << 40, 1L << 41);
    file.position(position);
    try (DirectoryStream<Path> all = Files.newDirectoryStream(DESCRIPTORS)) {
      for (Path each : all) {
        if (isAt(each, position)) {
          return Path.of("/proc/self/fd").resolve(each.getFileName());
        }
      }
    } finally {
      file.position(0);
    }
    throw new IOException("the descriptor of an open file is not in " + DESCRIPTORS);
  }

  private static boolean isAt(Path descriptor, long position) {
    try {
      return Files.readString(descriptor).startsWith("pos:\t" + position + "\n");
    } catch (IOException closed) { // by another thread, before this file was opened or read
      return false;
    }
  }
}
