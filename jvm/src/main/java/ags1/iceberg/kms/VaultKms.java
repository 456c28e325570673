package ags1.iceberg.kms;

import static java.nio.charset.StandardCharsets.ISO_8859_1;

import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.Map;
import org.apache.iceberg.encryption.KeyManagementClient;
import org.json.JSONObject;

/**
 * HashiCorp Vault (and OpenBao): master keys in a transit secrets engine. A key ID is the name of a
 * key there, and a wrapped key is Vault's own text {@code vault:v1:<base64>}. An RSA key unwraps but
 * does not wrap, because whoever has its public half could wrap too.
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
    // Otherwise Vault would make a missing key, if the caller may. The policy may forbid to ask.
    VaultServer.Answer asked = server().call("GET", path("keys", keyId), null, false);
    if (asked.status() != 403) {
      JSONObject info = data(asked, "read the key '" + keyId + "'", keyId, true);
      if (info.optString("type").startsWith("rsa-") || info.optBoolean("derived")
          || !info.optBoolean("supports_encryption", true)) {
        throw unfit(keyId);
      }
    }
    // Vault's error may repeat the request, with the key, so it is not quoted.
    JSONObject body = new JSONObject();
    body.put("plaintext", Base64.getEncoder().encodeToString(AesGcm.bytes(key)));
    String doing = "wrap a key under '" + keyId + "'";
    VaultServer.Answer answer = server().call("POST", path("encrypt", keyId), body, true);
    String wrapped = data(answer, doing, keyId, false).optString("ciphertext");
    if (!wrapped.matches(WRAPPED_KEY)) {
      throw server().failure(new VaultServer.Answer(answer.status(), null), doing, false);
    }
    // Perhaps the key's type was not to be read: an AES ciphertext has 28 bytes more than the key.
    int size = wrapped.substring(wrapped.lastIndexOf(':') + 1).replace("=", "").length() * 6 / 8;
    if (size == 256 || size == 384 || size == 512) {
      throw unfit(keyId);
    }
    return ByteBuffer.wrap(wrapped.getBytes(ISO_8859_1));
  }

  @Override
  public ByteBuffer unwrapKey(ByteBuffer wrapped, String keyId) {
    String text = new String(AesGcm.bytes(wrapped), ISO_8859_1);
    if (!text.matches(WRAPPED_KEY)) {
      throw new KmsException("the wrapped key is damaged, or was not wrapped by Vault");
    }
    JSONObject body = new JSONObject().put("ciphertext", text);
    String doing = "unwrap a key with '" + keyId + "'";
    VaultServer.Answer answer = server().call("POST", path("decrypt", keyId), body, true);
    String key = data(answer, doing, keyId, true).optString("plaintext");
    if (!key.matches("[A-Za-z0-9+/]+={0,2}")) {
      throw server().failure(new VaultServer.Answer(answer.status(), null), doing, false);
    }
    return ByteBuffer.wrap(Base64.getDecoder().decode(key));
  }

  private JSONObject data(VaultServer.Answer answer, String doing, String keyId, boolean quote) {
    if (answer.isGood()) {
      return answer.object("data");
    }
    boolean isMissing = answer.status() == 404 && answer.errors().isEmpty();
    if (isMissing || answer.errors().contains("key not found")) {
      throw new KmsException("%s has no key '%s'", server(), keyId);
    }
    throw answer.errors().contains("key derivation")
        ? unfit(keyId)
        : server().failure(answer, doing, quote);
  }

  private KmsException unfit(String keyId) {
    return new KmsException(
        "the key '%s' in %s does not wrap here: make a key of type aes256-gcm96 with derived=false",
        keyId, server());
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

  private synchronized VaultServer server() {
    if (server == null) {
      server = new VaultServer(properties);
    }
    return server;
  }
}
