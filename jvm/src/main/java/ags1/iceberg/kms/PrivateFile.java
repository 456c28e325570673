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

/** Small private files. One that others may read or write is refused, as ssh refuses keys. */
public final class PrivateFile {
  static final String CREDENTIAL = "[\\x21-\\x7e]{1,65536}";
  static final int READ_OR_WRITE = 0077;
  static final int WRITE = 0022;

  private PrivateFile() {}

  /** Returns the file's bytes; null if there is no file. {@code forbidden} is a mode of others. */
  static byte[] read(Path path, int maxSize, String what, int forbidden) {
    try (InputStream file = Files.newInputStream(path)) {
      if (forbidden != 0) {
        check(path, what, forbidden);
      }
      byte[] bytes = file.readNBytes(maxSize + 1);
      KmsException.when(bytes.length > maxSize, "the %s %s is too large", what, path);
      return bytes;
    } catch (NoSuchFileException missing) {
      return null;
    } catch (IOException error) {
      throw new KmsException("cannot read the %s %s (%s)", what, path, error.getClass().getName());
    }
  }

  /** Returns a token or the like from a file, whose owner may let others read it. */
  public static String credential(String path) {
    byte[] bytes = read(expanded(path), 1 << 17, "credential", 0);
    String text = bytes == null ? "" : new String(bytes, ISO_8859_1).strip();
    KmsException.when(!text.matches(CREDENTIAL), "there is no credential in %s", path);
    return text;
  }

  /** Returns a path with the home folder of this process's user for a {@code ~} in front. */
  static Path expanded(String path) {
    String home = Objects.requireNonNullElse(System.getenv("HOME"), System.getProperty("user.home"));
    return Path.of(path.matches("~(/.*)?") ? home + path.substring(1) : path);
  }

  private static void check(Path path, String what, int forbidden) throws IOException {
    Map<String, Object> attributes = Files.readAttributes(path, "unix:uid,mode");
    long uid = Integer.toUnsignedLong((Integer) attributes.get("uid"));
    boolean mine = uid == new UnixSystem().getUid();
    KmsException.when(
        !mine && uid != 0,
        "the %s %s belongs to another user (uid %s), who can change it: use a file of your own",
        what, path, uid);
    int mode = (Integer) attributes.get("mode") & 07777;
    KmsException.when(
        (mode & (mine ? forbidden : WRITE)) != 0,
        "the %s %s is open to others (mode %04o), who may have read or changed it: run chmod 600 "
            + "on it, or, if it is open for reading only, set kms.allow-readable-files to true",
        what, path, mode);
  }
}
