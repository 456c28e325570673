package ags1.iceberg.kms;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import org.apache.iceberg.encryption.KeyManagementClient;
import org.json.JSONObject;

/**
 * HashiCorp Vault (and OpenBao): master keys in a transit secrets engine. A key ID is the name of a
 * key there, and a wrapped key is Vault's own text {@code vault:v1:<base64>}.
 *
 * <p>The properties are those of Python, {@code kms.vault.…}: see {@link VaultServer}. An RSA key
 * unwraps but does not wrap, because whoever has its public half could wrap too.
 */
public final class VaultKms implements KeyManagementClient {
  private static final String KEY_ID = "(?!.*\\.\\.)\\w(?:[\\w.-]{0,510}\\w)?";
  private static final String WRAPPED_KEY = "vault:v[0-9]{1,10}:[A-Za-z0-9+/=]{1,65536}";

  private KmsProperties properties;
  private transient VaultServer server;

  @Override
  public void initialize(Map<String, String> given) {
    properties = new KmsProperties(given);
    server();
  }

  @Override
  public ByteBuffer wrapKey(ByteBuffer key, String keyId) {
    checkCanWrap(keyId);
    String plaintext = Base64.getEncoder().encodeToString(AesGcm.bytes(key));
    JSONObject data =
        ask("encrypt", keyId, new JSONObject().put("plaintext", plaintext), "wrap", false);
    String wrapped = data.optString("ciphertext");
    if (!wrapped.matches(WRAPPED_KEY)) {
      throw server().isNoVault("no ciphertext");
    }
    // The policy may not let us read the key's type. So the size decides: an AES ciphertext has 28
    // bytes more than the key.
    int size = wrapped.substring(wrapped.lastIndexOf(':') + 1).replace("=", "").length() * 6 / 8;
    if (size == 256 || size == 384 || size == 512) {
      throw isAsymmetric(keyId);
    }
    return ByteBuffer.wrap(wrapped.getBytes(StandardCharsets.US_ASCII));
  }

  @Override
  public ByteBuffer unwrapKey(ByteBuffer wrapped, String keyId) {
    String text = new String(AesGcm.bytes(wrapped), StandardCharsets.ISO_8859_1);
    if (!text.matches(WRAPPED_KEY)) {
      throw new KmsException("the wrapped key is damaged, or was not wrapped by Vault");
    }
    JSONObject data = ask("decrypt", keyId, new JSONObject().put("ciphertext", text), "unwrap", true);
    try {
      byte[] key = Base64.getDecoder().decode(data.optString("plaintext"));
      if (key.length > 0) {
        return ByteBuffer.wrap(key);
      }
    } catch (IllegalArgumentException notBase64) {
      // as below
    }
    throw server().isNoVault("no plaintext");
  }

  private void checkCanWrap(String keyId) {
    // Otherwise Vault would make a missing key, if the caller may. The policy may forbid to ask.
    VaultServer.Answer answer = server().call("GET", path("keys", keyId), null, false);
    if (answer.status() == 403) {
      return;
    }
    if (!answer.isGood()) {
      throw failure(answer, keyId, "read", true);
    }
    JSONObject key = answer.data();
    if (key.optString("type").startsWith("rsa-")) {
      throw isAsymmetric(keyId);
    }
    if (key.optBoolean("derived")) {
      throw isDerived(keyId);
    }
    if (!key.optBoolean("supports_encryption", true)) {
      throw new KmsException(
          "the key '%s' in %s cannot encrypt: it is for signing", keyId, server());
    }
  }

  private JSONObject ask(
      String action, String keyId, JSONObject body, String doing, boolean quote) {
    VaultServer.Answer answer = server().call("POST", path(action, keyId), body, true);
    if (!answer.isGood()) {
      throw failure(answer, keyId, doing, quote);
    }
    return answer.data();
  }

  private String path(String action, String keyId) {
    if (!keyId.matches(KEY_ID)) { // it could change the path of the request
      throw new KmsException(
          "%s has no key '%s': a key's name has letters, digits and _, and - and . except at its "
              + "ends",
          server(), keyId);
    }
    return server().mountPath() + "/" + action + "/" + keyId;
  }

  /** {@code quote} says whether Vault's text is quoted, which may repeat the request. */
  private RuntimeException failure(
      VaultServer.Answer answer, String keyId, String doing, boolean quote) {
    String text = answer.errors();
    if ((answer.status() == 404 && text.isEmpty()) || text.contains("key not found")) {
      return new KmsException("%s has no key '%s'", server(), keyId);
    }
    if (text.contains("key derivation")) {
      return isDerived(keyId);
    }
    if (text.contains("disallowed by policy")) {
      return new KmsException(
          "the version of the key '%s' that wrapped this key is not in use any more in %s: its "
              + "min_decryption_version is higher",
          keyId, server());
    }
    return server().failure(answer, doing + " a key with '" + keyId + "'", quote);
  }

  private KmsException isAsymmetric(String keyId) {
    return new KmsException(
        "the key '%s' in %s is an RSA key, which does not wrap here, because everybody who has its "
            + "public half can wrap too: make a key of type aes256-gcm96",
        keyId, server());
  }

  private KmsException isDerived(String keyId) {
    return new KmsException(
        "the key '%s' in %s derives its keys from a context, which is not supported: make one with "
            + "derived=false",
        keyId, server());
  }

  private synchronized VaultServer server() {
    if (server == null) {
      server = new VaultServer(properties);
    }
    return server;
  }
}
