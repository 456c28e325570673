package ags1.iceberg.kms;

import static java.nio.charset.StandardCharsets.ISO_8859_1;

import java.util.Base64;
import org.json.JSONObject;

/**
 * HashiCorp Vault (and OpenBao): master keys in a transit secrets engine. A key ID is the name of a
 * key there, and a wrapped key is Vault's own text {@code vault:v1:<base64>}. An RSA key unwraps but
 * does not wrap, because whoever has its public half could wrap too.
 */
public final class VaultKms extends Kms {
  private static final String KEY_ID = "(?!.*\\.\\.)\\w(?:[\\w.-]{0,510}\\w)?";
  private static final String WRAPPED_KEY = "vault:v[0-9]{1,10}:[A-Za-z0-9+/=]{1,65536}";

  private transient VaultServer server;

  @Override void open() { server = new VaultServer(this); }

  @Override
  byte[] wrap(byte[] key, String keyId) {
    // Otherwise Vault would make a missing key, if the caller may. The policy may forbid to ask.
    VaultServer.Answer asked = server.call("GET", path("keys", keyId), null, false);
    if (asked.status() != 403) {
      JSONObject info = data(asked, "read the key '" + keyId + "'", keyId, true);
      if (info.optString("type").startsWith("rsa-") || info.optBoolean("derived")
          || !info.optBoolean("supports_encryption", true)) {
        throw unfit(keyId);
      }
    }
    // Vault's error may repeat the request, with the key, so it is not quoted.
    String wrapped =
        answered(
            "encrypt", keyId, "plaintext", Base64.getEncoder().encodeToString(key),
            "ciphertext", WRAPPED_KEY, "wrap a key under '" + keyId + "'", false);
    // Perhaps the key's type was not to be read: an AES ciphertext has 28 bytes more than the key.
    int size = wrapped.substring(wrapped.lastIndexOf(':') + 1).replace("=", "").length() * 6 / 8;
    if (size == 256 || size == 384 || size == 512) {
      throw unfit(keyId);
    }
    return wrapped.getBytes(ISO_8859_1);
  }

  @Override
  byte[] unwrap(byte[] wrapped, String keyId) {
    String text = new String(wrapped, ISO_8859_1);
    KmsException.when(
        !text.matches(WRAPPED_KEY), "the wrapped key is damaged, or was not wrapped by Vault");
    return Base64.getDecoder()
        .decode(
            answered(
                "decrypt", keyId, "ciphertext", text,
                "plaintext", "[A-Za-z0-9+/]+={0,2}", "unwrap a key with '" + keyId + "'", true));
  }

  /** Sends one value; returns another, which must have a form. */
  private String answered(
      String action, String keyId, String name, String value,
      String asked, String form, String doing, boolean quote) {
    JSONObject body = new JSONObject().put(name, value);
    VaultServer.Answer answer = server.call("POST", path(action, keyId), body, true);
    String found = data(answer, doing, keyId, quote).optString(asked);
    if (!found.matches(form)) {
      throw server.failure(new VaultServer.Answer(answer.status(), null), doing, false);
    }
    return found;
  }

  private JSONObject data(VaultServer.Answer answer, String doing, String keyId, boolean quote) {
    if (answer.isGood()) {
      return answer.object("data");
    }
    boolean isMissing = answer.status() == 404 && answer.errors().isEmpty();
    KmsException.when(
        isMissing || answer.errors().contains("key not found"),
        "%s has no key '%s'", server, keyId);
    throw answer.errors().contains("key derivation")
        ? unfit(keyId)
        : server.failure(answer, doing, quote);
  }

  private KmsException unfit(String keyId) {
    return new KmsException(
        "the key '%s' in %s does not wrap here: make a key of type aes256-gcm96 with derived=false",
        keyId, server);
  }

  private String path(String action, String keyId) {
    KmsException.when(
        !keyId.matches(KEY_ID), "%s has no key '%s', and none can have that name", server, keyId);
    return server.mountPath() + "/" + action + "/" + keyId;
  }
}
