package ags1.iceberg.kms;

import static java.nio.charset.StandardCharsets.ISO_8859_1;

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
public final class PrivateFile {
  static final String CREDENTIAL = "[\\x21-\\x7e]{1,65536}";

  private PrivateFile() {}

  /** {@code identity} changes if the file is replaced or written. */
  record Content(byte[] bytes, String identity) {}

  /** Returns the file's bytes; null if there is no file. */
  static Content read(Path path, int maxSize, String what, boolean allowReadable) {
    try (InputStream file = Files.newInputStream(path)) {
      Map<String, Object> attributes = attributes(path);
      check(path, attributes, what, allowReadable);
      byte[] bytes = file.readNBytes(maxSize + 1);
      KmsException.when(bytes.length > maxSize, "the %s %s is too large", what, path);
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

  /** Returns a token or the like from a file, whose owner may let others read it. */
  public static String credential(String path) {
    try (InputStream file = Files.newInputStream(expanded(path))) {
      String text = new String(file.readNBytes(65_537), ISO_8859_1).strip();
      if (text.matches(CREDENTIAL)) {
        return text;
      }
    } catch (IOException error) {
      throw new KmsException("cannot read the credential in %s (%s)", path, error.getClass());
    }
    throw new KmsException("there is no credential in %s", path);
  }

  /** Returns a path with the home folder of this process's user for a {@code ~} in front. */
  static Path expanded(String path) {
    String home = Objects.requireNonNullElse(System.getenv("HOME"), System.getProperty("user.home"));
    return Path.of(path.matches("~(/.*)?") ? home + path.substring(1) : path);
  }

  private static Map<String, Object> attributes(Path path) throws IOException {
    String names = "unix:uid,mode,dev,ino,size,lastModifiedTime,ctime";
    return new TreeMap<>(Files.readAttributes(path, names));
  }

  private static void check(
      Path path, Map<String, Object> attributes, String what, boolean allowReadable) {
    long uid = Integer.toUnsignedLong((Integer) attributes.get("uid"));
    boolean mine = uid == new UnixSystem().getUid();
    KmsException.when(
        !mine && uid != 0,
        "the %s %s belongs to another user (uid %s), who can change it: use a file of your own",
        what, path, uid);
    int mode = (Integer) attributes.get("mode") & 07777;
    KmsException.when(
        (mode & (mine && !allowReadable ? 0077 : 0022)) != 0,
        "the %s %s is open to others (mode %04o), who may have read or changed it: run chmod 600 "
            + "on it, or, if it is open for reading only, set kms.allow-readable-files to true",
        what, path, mode);
  }
}
