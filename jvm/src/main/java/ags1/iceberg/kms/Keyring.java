package ags1.iceberg.kms;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.json.JSONException;
import org.json.JSONObject;
import org.json.JSONParserConfiguration;

/**
 * A keyring file: named master keys, each with its versions. With a passphrase, its keys are
 * encrypted under a key that scrypt derives. {@code ags1/kms/keyring.py} describes the format. The
 * file is only read here.
 */
final class Keyring {
  static final String PATH = "kms.local.keyring";
  static final String PASSPHRASE = "kms.local.passphrase";
  static final String PASSPHRASE_FILE = "kms.local.passphrase-file";

  private static final String FORMAT = "ags1-keyring";
  private static final int KEY_SIZE = 32;
  private static final int SALT_SIZE = 16;
  private static final int MAX_SIZE = 16 << 20;
  private static final int MAX_PASSPHRASE_SIZE = 64 << 10;
  private static final int MAX_P = 4;
  private static final long MAX_MEMORY = 512 << 20;

  private final KmsProperties properties;
  private final Path path;
  private Map<String, Map<Long, byte[]>> keys;
  private Map<String, Long> current;
  private Object seen;
  // The header of the protection, and the key that was derived for it.
  private String derivedFor;
  private byte[] derived;

  record MasterKey(long version, byte[] key) {
    @Override
    public String toString() {
      return "MasterKey[version=" + version + "]";
    }
  }

  Keyring(KmsProperties properties) {
    this.properties = properties;
    String given = properties.get(PATH, System.getenv("AGS1_KEYRING"));
    this.path = given == null || given.isEmpty() ? defaultPath() : PrivateFile.expanded(given);
  }

  /** Returns the version that wraps. The file is read again if it has changed. */
  synchronized MasterKey current(String name) {
    refresh();
    if (!keys.containsKey(name)) {
      throw new KmsException(
          "no master key '%s' in %s (make a new one with: ags1 keygen --name NAME)", name, this);
    }
    return new MasterKey(current.get(name), keys.get(name).get(current.get(name)));
  }

  /** Returns a version. The file is read again if the version is missing. */
  synchronized MasterKey version(String name, long version) {
    if (keys == null || !keys.containsKey(name) || !keys.get(name).containsKey(version)) {
      refresh();
    }
    if (!keys.containsKey(name)) {
      throw new KmsException(
          "no master key '%s' in %s (name the keyring that has it: a new key of this name would "
              + "not open anything)",
          name, this);
    }
    byte[] key = keys.get(name).get(version);
    if (key == null) {
      throw new KmsException("the master key '%s' in %s has no version %s", name, this, version);
    }
    return new MasterKey(version, key);
  }

  @Override
  public String toString() {
    return "the keyring " + path;
  }

  private void refresh() {
    if (keys != null && Objects.equals(seen, PrivateFile.identity(path))) {
      return;
    }
    PrivateFile.Content content;
    try {
      content = PrivateFile.read(path, MAX_SIZE, "keyring", allowReadable());
    } catch (NoSuchFileException missing) {
      throw new KmsException(
          "there is no keyring %s: give the path of the keyring that has the master key (%s), or "
              + "make a new one with: ags1 keygen",
          path, PATH);
    }
    try {
      parse(opened(json(content.bytes())));
    } catch (JSONException | ClassCastException | IllegalArgumentException damaged) {
      throw new KmsException("%s is damaged", this); // the cause may quote a key
    }
    seen = content.identity();
  }

  /** Returns the object {@code keys} of a keyring. */
  private JSONObject opened(JSONObject document) {
    if (!FORMAT.equals(document.opt("format"))) {
      throw new KmsException("%s is not a keyring of ags1", path);
    }
    Object version = document.opt("version");
    boolean isProtected = Integer.valueOf(2).equals(version);
    if (!isProtected && !Integer.valueOf(1).equals(version)) {
      throw new KmsException("%s has a version that this ags1 does not know", this);
    }
    if (!isProtected) {
      if (derived != null || hasPassphrase()) {
        throw new IllegalStateException(
            String.format(
                "a passphrase is given for %s, which has none: it may be another keyring than "
                    + "yours; if it is yours, give no passphrase",
                this));
      }
      return document.getJSONObject("keys");
    }
    JSONObject protection = document.getJSONObject("protection");
    // Python's json.dumps with sorted names.
    String header =
        String.format(
            "{\"format\":\"%s\",\"protection\":{\"kdf\":\"scrypt\",\"n\":%s,\"p\":%s,\"r\":%s,"
                + "\"salt\":\"%s\"},\"version\":2}",
            FORMAT, protection.get("n"), protection.get("p"), protection.get("r"),
            protection.get("salt"));
    byte[] key = header.equals(derivedFor) ? derived : derive(protection);
    byte[] sealed = Base64.getDecoder().decode(document.getString("keys"));
    byte[] text = AesGcm.open(key, sealed, header.getBytes(StandardCharsets.US_ASCII));
    if (text == null) {
      throw new KmsException("the passphrase does not open %s", this);
    }
    derived = key;
    derivedFor = header;
    return json(text);
  }

  private byte[] derive(JSONObject protection) {
    if (!"scrypt".equals(protection.opt("kdf"))
        || !protection.keySet().equals(Set.of("kdf", "n", "r", "p", "salt"))) {
      throw new KmsException("%s has a protection that this ags1 does not know", this);
    }
    int n = (Integer) protection.get("n");
    int r = (Integer) protection.get("r");
    int p = (Integer) protection.get("p");
    byte[] salt = Base64.getDecoder().decode(protection.getString("salt"));
    if (n < 2 || r < 1 || p < 1 || p > MAX_P || 128L * r > MAX_MEMORY / n
        || Integer.bitCount(n) != 1 || (r == 1 && n >= 1 << 16) || salt.length != SALT_SIZE) {
      throw new KmsException(
          "%s is damaged, or somebody has changed it: its scrypt parameters are out of bounds; "
              + "restore it from a backup",
          this);
    }
    return Scrypt.derive(passphrase(), salt, n, r, p, KEY_SIZE);
  }

  private void parse(JSONObject document) {
    Map<String, Map<Long, byte[]>> parsed = new HashMap<>();
    Map<String, Long> wrapping = new HashMap<>();
    for (String name : document.keySet()) {
      JSONObject versions = document.getJSONObject(name).getJSONObject("versions");
      Map<Long, byte[]> byNumber = new HashMap<>();
      for (String number : versions.keySet()) {
        byte[] key =
            Base64.getDecoder().decode(versions.getJSONObject(number).getString("key"));
        if (!number.matches("[1-9][0-9]{0,9}") || Long.parseLong(number) >> 32 != 0
            || key.length != KEY_SIZE) {
          throw new JSONException(name);
        }
        byNumber.put(Long.parseLong(number), key);
      }
      long number = ((Number) document.getJSONObject(name).get("current")).longValue();
      if (!byNumber.containsKey(number)) {
        throw new JSONException(name);
      }
      parsed.put(name, byNumber);
      wrapping.put(name, number);
    }
    keys = parsed;
    current = wrapping;
  }

  private static JSONObject json(byte[] bytes) {
    try {
      String text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
      return new JSONObject(text, new JSONParserConfiguration().withStrictMode(true));
    } catch (CharacterCodingException error) {
      throw new JSONException("not UTF-8");
    }
  }

  private boolean hasPassphrase() {
    return properties.get(PASSPHRASE) != null || properties.get(PASSPHRASE_FILE) != null;
  }

  private byte[] passphrase() {
    String file = properties.get(PASSPHRASE_FILE);
    if (file == null) {
      if (properties.get(PASSPHRASE) == null) {
        throw new KmsException(
            "%s is protected by a passphrase, and none was given: set %s", this, PASSPHRASE_FILE);
      }
      return properties.get(PASSPHRASE).getBytes(StandardCharsets.UTF_8);
    }
    byte[] bytes;
    try {
      bytes =
          PrivateFile.read(
                  PrivateFile.expanded(file), MAX_PASSPHRASE_SIZE, "passphrase file",
                  allowReadable())
              .bytes();
    } catch (NoSuchFileException missing) {
      throw new KmsException("there is no passphrase file %s", file);
    }
    boolean newline = bytes.length > 0 && bytes[bytes.length - 1] == '\n';
    byte[] passphrase = newline ? Arrays.copyOf(bytes, bytes.length - 1) : bytes;
    if (passphrase.length == 0) {
      throw new KmsException("the passphrase file %s is empty", file);
    }
    return passphrase;
  }

  private boolean allowReadable() {
    return properties.flag(KmsProperties.ALLOW_READABLE, false);
  }

  private static Path defaultPath() {
    String folder = Objects.requireNonNullElse(System.getenv("XDG_CONFIG_HOME"), "");
    Path config = folder.startsWith("/") ? Path.of(folder) : Path.of(PrivateFile.home(), ".config");
    return config.resolve("ags1").resolve("keyring.json");
  }
}
