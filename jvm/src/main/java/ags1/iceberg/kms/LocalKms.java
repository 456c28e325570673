package ags1.iceberg.kms;

import static ags1.iceberg.kms.KmsClients.refuseIf;
import static java.nio.charset.StandardCharsets.ISO_8859_1;
import static java.nio.charset.StandardCharsets.UTF_8;

import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.text.Normalizer;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Stream;
import org.bouncycastle.crypto.generators.SCrypt;
import org.json.JSONException;
import org.json.JSONObject;

/**
 * The master keys of a keyring file, which {@code ags1 keygen} makes. With a passphrase, the keys in
 * the file are encrypted under a key that scrypt derives. {@code ags1/kms/keyring.py} describes the
 * file, which is only read here. The properties are those of Python.
 *
 * <p>A wrapped key is {@code 01 | key version: uint32 BE | nonce(12) | ciphertext | tag(16)},
 * AES-256-GCM, with the first five bytes as additional data.
 *
 * <p>Threads may share it: they look up a master key, and read the keyring, one at a time.
 */
public final class LocalKms extends Kms {
  private static final String PASSPHRASE = "kms.local.passphrase";
  private static final String PASSPHRASE_FILE = "kms.local.passphrase-file";
  private static final byte FORMAT = 1;
  private static final int PREFIX_SIZE = 5;
  private static final int KEY_SIZE = 32;
  private static final int SALT_SIZE = 16;
  private static final int MAX_SIZE = 16 << 20;
  private static final int MAX_PASSPHRASE_SIZE = 64 << 10;
  private static final int MAX_P = 4;
  private static final long MAX_MEMORY = 512 << 20;

  private transient Path path;
  private transient int forbidden; // to other users
  // What follows changes, in masterKey() alone.
  private transient Map<String, MasterKey> keys;
  // The header of the protection, and the key that was derived for it.
  private transient String derivedFor;
  private transient byte[] derived;

  /** {@code current} is the version that wraps. */
  private record MasterKey(long current, Map<Long, byte[]> versions) {}

  @Override
  void open() {
    checkNames("kms.local.", List.of("keyring", "passphrase", "passphrase-file"));
    refuseBoth(PASSPHRASE, PASSPHRASE_FILE);
    forbidden =
        flag("kms.allow-readable-files", false) ? PrivateFile.WRITE : PrivateFile.READ_OR_WRITE;
    keys = Map.of();
    String given = get("kms.local.keyring", System.getenv("AGS1_KEYRING"));
    String folder = Objects.requireNonNullElse(System.getenv("XDG_CONFIG_HOME"), "");
    String ours = (folder.startsWith("/") ? folder : "~/.config") + "/ags1/keyring.json";
    path = PrivateFile.expanded(given == null || given.isEmpty() ? ours : given);
  }

  @Override
  byte[] wrap(byte[] key, String keyId) {
    MasterKey master = masterKey(keyId, null);
    byte[] prefix =
        ByteBuffer.allocate(PREFIX_SIZE).put(FORMAT).putInt((int) master.current()).array();
    byte[] sealed = seal(master.versions().get(master.current()), key, prefix);
    return ByteBuffer.allocate(PREFIX_SIZE + sealed.length).put(prefix).put(sealed).array();
  }

  @Override
  byte[] unwrap(byte[] wrapped, String keyId) {
    KmsException.when(
        wrapped.length < PREFIX_SIZE || wrapped[0] != FORMAT,
        "no keyring wrapped it: the key '%s' is another KMS's, or it is damaged", keyId);
    byte[] prefix = Arrays.copyOf(wrapped, PREFIX_SIZE);
    long version = Integer.toUnsignedLong(ByteBuffer.wrap(prefix).getInt(1));
    byte[] sealed = Arrays.copyOfRange(wrapped, PREFIX_SIZE, wrapped.length);
    byte[] key = opened(masterKey(keyId, version).versions().get(version), sealed, prefix);
    KmsException.when(
        key == null,
        "the master key '%s' in %s does not open the wrapped key: another key of that name "
            + "wrapped it, or it was changed", keyId, this);
    return key;
  }

  @Override public String toString() { return "the keyring " + path; }

  /** Returns a master key. The file is read again before it wraps, and if a version is missing. */
  private synchronized MasterKey masterKey(String name, Long version) {
    MasterKey key = keys.get(name);
    if (version == null || key == null || !key.versions().containsKey(version)) {
      keys = read();
      key = keys.get(name);
    }
    KmsException.when(
        key == null,
        "no master key '%s' in %s: name the keyring that has it. `ags1 keygen --name NAME` makes "
            + "another key, which does not open what that one wrapped", name, this);
    KmsException.when(
        version != null && !key.versions().containsKey(version),
        "the master key '%s' in %s has no version %s", name, this, version);
    return key;
  }

  private Map<String, MasterKey> read() {
    byte[] content = PrivateFile.read(path, MAX_SIZE, "keyring", this::forbiddenTo);
    KmsException.when(
        content == null,
        "there is no keyring %s: kms.local.keyring names one, and ags1 keygen makes one", path);
    try {
      return parsed(unprotected(json(content)));
    } catch (JSONException | ClassCastException | IllegalArgumentException damaged) {
      throw new KmsException("%s is damaged", this); // the cause may quote a key
    }
  }

  /** Only a keyring with a passphrase may be open to others: some file systems have no modes. */
  private int forbiddenTo(byte[] content) {
    try {
      return Integer.valueOf(2).equals(json(content).opt("version"))
          ? PrivateFile.NOTHING
          : forbidden;
    } catch (JSONException damaged) {
      return forbidden;
    }
  }

  /** Returns the object {@code keys} of a keyring. */
  private JSONObject unprotected(JSONObject document) {
    Object version = document.opt("version");
    KmsException.when(
        !"ags1-keyring".equals(document.opt("format"))
            || !Arrays.<Object>asList(1, 2).contains(version),
        "%s is not a keyring of ags1, or of a version that is unknown", path);
    if (version.equals(1)) {
      KmsException.when(
          derived != null || get(PASSPHRASE, get(PASSPHRASE_FILE, null)) != null,
          "a passphrase is given for %s, which has none: it may be another one than yours", this);
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
    byte[] sealed = base64(document.getString("keys"));
    List<byte[]> candidates =
        header.equals(derivedFor) ? List.of(derived) : forms(passphrase());
    for (byte[] candidate : candidates) {
      byte[] key = header.equals(derivedFor) ? candidate : derive(protection, candidate);
      byte[] text = opened(key, sealed, header.getBytes(UTF_8));
      if (text != null) {
        derived = key;
        derivedFor = header;
        return json(text);
      }
    }
    throw new KmsException("the passphrase does not open %s", this);
  }

  /** Returns a passphrase in the forms of Unicode that may have protected a keyring. */
  private static List<byte[]> forms(byte[] passphrase) {
    String text = new String(passphrase, UTF_8);
    if (!Arrays.equals(text.getBytes(UTF_8), passphrase)) {
      return List.of(passphrase); // not UTF-8
    }
    return Stream.of(
            Normalizer.normalize(text, Normalizer.Form.NFC), text,
            Normalizer.normalize(text, Normalizer.Form.NFD))
        .distinct()
        .map(form -> form.getBytes(UTF_8))
        .toList();
  }

  private byte[] derive(JSONObject protection, byte[] passphrase) {
    int n = (Integer) protection.get("n");
    int r = (Integer) protection.get("r");
    int p = (Integer) protection.get("p");
    byte[] salt = base64(protection.getString("salt"));
    KmsException.when(
        !protection.get("kdf").equals("scrypt") || protection.length() != 5 || p > MAX_P
            || (long) n * r > MAX_MEMORY / 128 || salt.length != SALT_SIZE,
        "%s is damaged, or somebody changed it: its scrypt parameters are out of bounds", this);
    return SCrypt.generate(passphrase, salt, n, r, p, KEY_SIZE); // refuses what is too small
  }

  private static Map<String, MasterKey> parsed(JSONObject document) {
    Map<String, MasterKey> parsed = new HashMap<>();
    for (String name : document.keySet()) {
      JSONObject versions = document.getJSONObject(name).getJSONObject("versions");
      Map<Long, byte[]> byNumber = new HashMap<>();
      for (String number : versions.keySet()) {
        byte[] key = base64(versions.getJSONObject(number).getString("key"));
        refuseIf(!number.matches("[1-9][0-9]*") || key.length != KEY_SIZE, "%s", name);
        byNumber.put(Integer.toUnsignedLong(Integer.parseUnsignedInt(number)), key);
      }
      long current = ((Number) document.getJSONObject(name).get("current")).longValue();
      refuseIf(!byNumber.containsKey(current), "%s", name);
      parsed.put(name, new MasterKey(current, byNumber));
    }
    return parsed;
  }

  private static byte[] base64(String text) { return Base64.getDecoder().decode(text); }

  private byte[] passphrase() {
    String file = get(PASSPHRASE_FILE, null);
    String given = get(PASSPHRASE, null);
    KmsException.when(
        file == null && given == null,
        "%s is protected by a passphrase, and none was given: set %s", this, PASSPHRASE_FILE);
    if (file == null) {
      return given.getBytes(UTF_8);
    }
    Path path = PrivateFile.expanded(file);
    byte[] bytes = PrivateFile.read(path, MAX_PASSPHRASE_SIZE, "passphrase file", forbidden);
    // In ISO 8859-1 each byte is a character. First, a byte-order mark in UTF-8.
    String text = bytes == null ? "" : new String(bytes, ISO_8859_1);
    text = text.replaceFirst("^\u00ef\u00bb\u00bf", "").replaceFirst("(\r\n|\n|\r)\\z", "");
    KmsException.when(text.isEmpty(), "the passphrase file %s is empty, or there is none", file);
    return text.getBytes(ISO_8859_1);
  }
}
