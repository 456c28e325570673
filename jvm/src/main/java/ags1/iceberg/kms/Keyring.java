package ags1.iceberg.kms;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.json.JSONException;
import org.json.JSONObject;

/**
 * A keyring file: named master keys, each with its versions. With a passphrase, its keys are
 * encrypted under a key that scrypt derives. {@code ags1/kms/keyring.py} describes the format. The
 * file is only read here.
 */
final class Keyring {
  private static final String PREFIX = "kms.local.";
  private static final String PASSPHRASE = PREFIX + "passphrase";
  private static final String PASSPHRASE_FILE = PREFIX + "passphrase-file";
  private static final int KEY_SIZE = 32;
  private static final int SALT_SIZE = 16;
  private static final int MAX_SIZE = 16 << 20;
  private static final int MAX_PASSPHRASE_SIZE = 64 << 10;
  private static final int MAX_P = 4;
  private static final long MAX_MEMORY = 512 << 20;

  private final KmsProperties properties;
  private final boolean allowReadable;
  private final Path path;
  private Map<String, MasterKey> keys;
  private String seen;
  // The header of the protection, and the key that was derived for it.
  private String derivedFor;
  private byte[] derived;

  /** {@code current} is the version that wraps. */
  record MasterKey(long current, Map<Long, byte[]> versions) {}

  Keyring(KmsProperties properties) {
    this.properties = properties;
    properties.checkNames(PREFIX, List.of("keyring", "passphrase", "passphrase-file"));
    properties.refuseBoth(PASSPHRASE, PASSPHRASE_FILE);
    allowReadable = properties.flag("kms.allow-readable-files", false);
    String given = properties.get(PREFIX + "keyring", System.getenv("AGS1_KEYRING"));
    path = given == null || given.isEmpty() ? defaultPath() : PrivateFile.expanded(given);
  }

  /**
   * Returns a master key. Before it wraps, the file is read again if it has changed; before it
   * unwraps, if the version is missing.
   */
  synchronized MasterKey get(String name, Long version) {
    if (version == null || keys == null || !keys.containsKey(name)
        || !keys.get(name).versions().containsKey(version)) {
      refresh();
    }
    MasterKey key = keys.get(name);
    if (key == null) {
      throw new KmsException(
          "no master key '%s' in %s (%s)", name, this,
          version == null
              ? "make a new one with: ags1 keygen --name NAME"
              : "name the keyring that has it: a new key of this name would not open anything");
    }
    if (version != null && !key.versions().containsKey(version)) {
      throw new KmsException("the master key '%s' in %s has no version %s", name, this, version);
    }
    return key;
  }

  @Override
  public String toString() {
    return "the keyring " + path;
  }

  private void refresh() {
    if (keys != null && Objects.equals(seen, PrivateFile.identity(path))) {
      return;
    }
    PrivateFile.Content content = PrivateFile.read(path, MAX_SIZE, "keyring", allowReadable);
    if (content == null) {
      throw new KmsException(
          "there is no keyring %s: kms.local.keyring gives the path of the keyring that has the "
              + "master key; ags1 keygen makes a new one",
          path);
    }
    try {
      keys = parsed(opened(json(content.bytes())));
    } catch (JSONException | ClassCastException | IllegalArgumentException damaged) {
      throw new KmsException("%s is damaged", this); // the cause may quote a key
    }
    seen = content.identity();
  }

  /** Returns the object {@code keys} of a keyring. */
  private JSONObject opened(JSONObject document) {
    Object version = document.opt("version");
    if (!"ags1-keyring".equals(document.opt("format")) || !Set.<Object>of(1, 2).contains(version)) {
      throw new KmsException("%s is not a keyring of ags1, or of a version that is unknown", path);
    }
    if (version.equals(1)) {
      if (derived != null || properties.get(PASSPHRASE, properties.get(PASSPHRASE_FILE, null)) != null) {
        throw new KmsException(
            "a passphrase is given for %s, which has none: it may be another keyring than yours; if "
                + "it is yours, give no passphrase",
            this);
      }
      return document.getJSONObject("keys");
    }
    JSONObject protection = document.getJSONObject("protection");
    // As Python's json.dumps with sorted names.
    String header =
        String.format(
            "{\"format\":\"ags1-keyring\",\"protection\":{\"kdf\":\"%s\",\"n\":%s,\"p\":%s,\"r\":%s,"
                + "\"salt\":\"%s\"},\"version\":2}",
            protection.get("kdf"), protection.get("n"), protection.get("p"), protection.get("r"),
            protection.get("salt"));
    byte[] key = header.equals(derivedFor) ? derived : derive(protection);
    byte[] sealed = Base64.getDecoder().decode(document.getString("keys"));
    byte[] text = AesGcm.open(key, sealed, header.getBytes(UTF_8));
    if (text == null) {
      throw new KmsException("the passphrase does not open %s", this);
    }
    derived = key;
    derivedFor = header;
    return json(text);
  }

  private byte[] derive(JSONObject protection) {
    int n = (Integer) protection.get("n");
    int r = (Integer) protection.get("r");
    int p = (Integer) protection.get("p");
    byte[] salt = Base64.getDecoder().decode(protection.getString("salt"));
    if (!protection.get("kdf").equals("scrypt") || protection.length() != 5
        || n < 2 || r < 1 || p < 1 || p > MAX_P || 128L * r > MAX_MEMORY / n
        || Integer.bitCount(n) != 1 || (r == 1 && n >= 1 << 16) || salt.length != SALT_SIZE) {
      throw new KmsException(
          "%s is damaged, or somebody has changed it: its protection is unknown, or its scrypt "
              + "parameters are out of bounds; restore it from a backup",
          this);
    }
    return Scrypt.derive(passphrase(), salt, n, r, p, KEY_SIZE);
  }

  private static Map<String, MasterKey> parsed(JSONObject document) {
    Map<String, MasterKey> parsed = new HashMap<>();
    for (String name : document.keySet()) {
      JSONObject versions = document.getJSONObject(name).getJSONObject("versions");
      Map<Long, byte[]> byNumber = new HashMap<>();
      for (String number : versions.keySet()) {
        byte[] key = Base64.getDecoder().decode(versions.getJSONObject(number).getString("key"));
        if (!number.matches("[1-9][0-9]{0,9}") || Long.parseLong(number) >> 32 != 0
            || key.length != KEY_SIZE) {
          throw new JSONException(name);
        }
        byNumber.put(Long.parseLong(number), key);
      }
      long current = ((Number) document.getJSONObject(name).get("current")).longValue();
      if (!byNumber.containsKey(current)) {
        throw new JSONException(name);
      }
      parsed.put(name, new MasterKey(current, byNumber));
    }
    return parsed;
  }

  private static JSONObject json(byte[] bytes) {
    try {
      return KmsProperties.json(UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString());
    } catch (CharacterCodingException error) {
      throw new JSONException("not UTF-8");
    }
  }

  private byte[] passphrase() {
    String file = properties.get(PASSPHRASE_FILE, null);
    if (file == null) {
      String given = properties.get(PASSPHRASE, null);
      if (given == null) {
        throw new KmsException(
            "%s is protected by a passphrase, and none was given: set %s", this, PASSPHRASE_FILE);
      }
      return given.getBytes(UTF_8);
    }
    PrivateFile.Content content =
        PrivateFile.read(
            PrivateFile.expanded(file), MAX_PASSPHRASE_SIZE, "passphrase file", allowReadable);
    byte[] bytes = content == null ? new byte[0] : content.bytes();
    boolean hasNewline = bytes.length > 0 && bytes[bytes.length - 1] == '\n';
    byte[] passphrase = Arrays.copyOf(bytes, bytes.length - (hasNewline ? 1 : 0));
    if (passphrase.length == 0) {
      throw new KmsException("the passphrase file %s is empty, or there is none", file);
    }
    return passphrase;
  }

  private static Path defaultPath() {
    String folder = Objects.requireNonNullElse(System.getenv("XDG_CONFIG_HOME"), "");
    Path config = folder.startsWith("/") ? Path.of(folder) : Path.of(PrivateFile.home(), ".config");
    return config.resolve("ags1").resolve("keyring.json");
  }
}
