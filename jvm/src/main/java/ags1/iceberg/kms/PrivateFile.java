package ags1.iceberg.kms;

import com.sun.security.auth.module.UnixSystem;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;

/** Small private files. One that others may read or write is refused, as ssh refuses keys. */
final class PrivateFile {
  private PrivateFile() {}

  /** {@code identity} changes if the file is replaced or written. */
  record Content(byte[] bytes, String identity) {}

  /** Returns the file's bytes; null if there is no file. */
  static Content read(Path path, int maxSize, String what, boolean allowReadable) {
    try (InputStream file = Files.newInputStream(path)) {
      Map<String, Object> attributes = attributes(path);
      check(path, attributes, what, allowReadable);
      byte[] bytes = file.readNBytes(maxSize + 1);
      if (bytes.length > maxSize) {
        throw new KmsException("the %s %s is too large", what, path);
      }
      return new Content(bytes, attributes.toString());
    } catch (NoSuchFileException missing) {
      return null;
    } catch (IOException error) {
      throw new KmsException("cannot read the %s %s (%s)", what, path, error.getClass().getName());
    }
  }

  static String identity(Path path) {
    try {
      return attributes(path).toString();
    } catch (IOException missing) {
      return null;
    }
  }

  /** Returns a path with the home folder of this process's user for a {@code ~} in front. */
  static Path expanded(String path) {
    return Path.of(path.matches("~(/.*)?") ? home() + path.substring(1) : path);
  }

  static String home() {
    return Objects.requireNonNullElse(System.getenv("HOME"), System.getProperty("user.home"));
  }

  private static Map<String, Object> attributes(Path path) throws IOException {
    String names = "unix:uid,mode,dev,ino,size,lastModifiedTime,ctime";
    return new TreeMap<>(Files.readAttributes(path, names));
  }

  private static void check(
      Path path, Map<String, Object> attributes, String what, boolean allowReadable) {
    long uid = Integer.toUnsignedLong((Integer) attributes.get("uid"));
    boolean mine = uid == new UnixSystem().getUid();
    if (!mine && uid != 0) {
      throw new KmsException(
          "the %s %s belongs to another user (uid %s), who can change it at any time: use a file "
              + "that belongs to you or to root",
          what, path, uid);
    }
    int mode = (Integer) attributes.get("mode") & 07777;
    if ((mode & (mine && !allowReadable ? 0077 : 0022)) != 0) {
      throw new KmsException(
          "the %s %s is open to others (mode %04o), who may have read or changed it: run chmod 600 "
              + "on it before you use it, or, if only reading is open and nobody else can reach "
              + "it, set kms.allow-readable-files to true",
          what, path, mode);
    }
  }
}
