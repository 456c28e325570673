package ags1.iceberg.kms;

import static ags1.iceberg.kms.KmsClients.refuseIf;
import static java.nio.charset.StandardCharsets.ISO_8859_1;

import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.CertPathBuilderException;
import java.security.cert.CertPathValidatorException;
import java.security.cert.Certificate;
import java.security.cert.CertificateExpiredException;
import java.security.cert.CertificateFactory;
import java.security.cert.CertificateNotYetValidException;
import java.security.spec.InvalidKeySpecException;
import java.security.spec.PKCS8EncodedKeySpec;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Stream;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLException;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/**
 * HashiCorp Vault (and OpenBao): master keys in a transit secrets engine. A key ID is the name of a
 * key there, and a wrapped key is Vault's own text {@code vault:v1:<base64>}. An RSA key unwraps but
 * does not wrap, because whoever has its public half could wrap too.
 *
 * <p>Calls are repeated as by Vault's own client. No redirect is followed, because the token would
 * be sent with it. The properties begin with {@code kms.vault.}, and are those of Python but {@code
 * verify=false}.
 *
 * <p>Threads may share it, and send their requests at the same time. They look for another token one
 * at a time: of those whose token has expired, only the first one logs in.
 */
public final class VaultKms extends Kms {
  private static final String PREFIX = "kms.vault.";
  private static final List<String> KNOWN =
      List.of(
          "url", "namespace", "mount-path", "ca-cert", "client-cert", "client-key", "auth", "token", "token-file", "role-id",
          "secret-id", "secret-id-file", "auth-mount-path", "role", "jwt-file", "verify");
  private static final String JWT_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/token";
  private static final String URL =
      "https?://(\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?(/[^?#\\s]*)?";
  private static final String LOOPBACK =
      "(?i)(.+\\.)?localhost|127(\\.(0|[1-9][0-9]{0,2})){3}|\\[(0{0,4}:){2,7}0{0,3}1\\]";
  private static final String KEY_ID = "(?!.*\\.\\.)\\w(?:[\\w.-]{0,510}\\w)?";
  private static final String WRAPPED_KEY = "vault:v[0-9]{1,10}:[A-Za-z0-9+/=]{1,65536}";
  private static final int MAX_ANSWER_SIZE = 4 << 20;
  // 412: a replica is not yet up to date. A login with a wrong secret ID may give a 500.
  private static final Set<Integer> TRANSIENT = Set.of(412, 429, 500, 502, 503, 504);
  // Threads share a token, whose uses may be few: one that served nobody is no reason for more.
  private static final int MAX_USELESS_TOKENS = 8;
  private static final long FIRST_WAIT_MS = 200;
  private static final long MAX_WAIT_MS = 10_000;

  private transient String url;
  private transient String namespace;
  private transient String auth;
  private transient int maxAttempts;
  private transient HttpClient http;
  private transient String token; // changes, in otherToken() alone
  private transient volatile String served; // the token of the last call that was not refused

  /** {@code body} is null if the answer has not the form of Vault's. */
  private record Answer(int status, JSONObject body) {
    JSONObject object(String name) { return body.optJSONObject(name, new JSONObject()); }
    boolean isGood() { return body != null && (status == 200 || status == 204); }

    String errors() {
      JSONArray errors = body == null ? null : body.optJSONArray("errors");
      return errors == null ? "" : errors.join("; ");
    }

    @Override public String toString() { return "Answer[status=" + status + "]"; }
  }

  @Override
  void open() {
    checkNames(PREFIX, KNOWN);
    refuseBoth("kms.vault.token", "kms.vault.token-file");
    refuseBoth("kms.vault.secret-id", "kms.vault.secret-id-file");
    refuseIf(
        !flag("kms.vault.verify", true),
        "kms.vault.verify=false is for Python alone: name the authority in kms.vault.ca-cert");
    url = checkedUrl();
    String ours = Objects.requireNonNullElse(System.getenv("VAULT_NAMESPACE"), "");
    namespace = get("kms.vault.namespace", ours);
    auth = get("kms.vault.auth", "token");
    refuseIf(
        !List.of("token", "approle", "kubernetes").contains(auth),
        "the property 'kms.vault.auth' is none of 'token', 'approle', 'kubernetes'");
    String role = PREFIX + (auth.equals("approle") ? "role-id" : "role");
    refuseIf(
        !auth.equals("token") && get(role, null) == null, "the property '%s' is missing", role);
    maxAttempts = number("kms.max-attempts", 4, 100);
    HttpClient.Builder builder =
        HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1)
            .followRedirects(HttpClient.Redirect.NEVER)
            .connectTimeout(timeout("kms.connect-timeout-ms", 3_000));
    if (url.startsWith("http:")) {
      builder.proxy(HttpClient.Builder.NO_PROXY); // it would see the keys
    }
    String authorities = get("kms.vault.ca-cert", System.getenv("VAULT_CACERT"));
    String cert = get("kms.vault.client-cert", System.getenv("VAULT_CLIENT_CERT"));
    String key = get("kms.vault.client-key", System.getenv("VAULT_CLIENT_KEY"));
    if (isGiven(authorities) || isGiven(cert)) {
      builder.sslContext(tls(authorities, cert, isGiven(key) ? key : cert));
    }
    http = builder.build();
  }

  @Override
  byte[] wrap(byte[] key, String keyId) {
    // Otherwise Vault would make a missing key, if the caller may. The policy may forbid to ask.
    Answer asked = call("GET", path("keys", keyId), null, false);
    if (asked.status() != 403) {
      JSONObject info = data(asked, "read the key '" + keyId + "'", keyId, true);
      if (info.optString("type").startsWith("rsa-") || info.optBoolean("derived")
          || !info.optBoolean("supports_encryption", true)) {
        throw unfit(keyId);
      }
    }
    // Vault's error may repeat the request, with the key, so it is not quoted.
    JSONObject body = new JSONObject().put("plaintext", Base64.getEncoder().encodeToString(key));
    String doing = "wrap a key under '" + keyId + "'";
    Answer answer = call("POST", path("encrypt", keyId), body, true);
    String wrapped = data(answer, doing, keyId, false).optString("ciphertext");
    checkForm(wrapped, WRAPPED_KEY, doing);
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
    String doing = "unwrap a key with '" + keyId + "'";
    JSONObject body = new JSONObject().put("ciphertext", text);
    Answer answer = call("POST", path("decrypt", keyId), body, true);
    String key = data(answer, doing, keyId, true).optString("plaintext");
    checkForm(key, "[A-Za-z0-9+/]+={0,2}", doing);
    return Base64.getDecoder().decode(key);
  }

  @Override
  public String toString() {
    return "Vault's " + (namespace.isEmpty() ? "" : namespace + "/") + mount("mount-path", "transit")
        + " at " + url;
  }

  private String path(String action, String keyId) {
    KmsException.when(
        !keyId.matches(KEY_ID), "%s has no key '%s', and none can have that name", this, keyId);
    return mount("mount-path", "transit") + "/" + action + "/" + keyId;
  }

  private JSONObject data(Answer answer, String doing, String keyId, boolean quote) {
    if (answer.isGood()) {
      return answer.object("data");
    }
    boolean isMissing = answer.status() == 404 && answer.errors().isEmpty();
    KmsException.when(
        isMissing || answer.errors().contains("key not found"), "%s has no key '%s'", this, keyId);
    throw answer.errors().contains("key derivation")
        ? unfit(keyId)
        : failure(answer, doing, quote);
  }

  private KmsException unfit(String keyId) {
    return new KmsException(
        "the key '%s' in %s does not wrap here: make a key of type aes256-gcm96 with derived=false",
        keyId, this);
  }

  private void checkForm(String text, String form, String doing) {
    if (!text.matches(form)) {
      throw failure(new Answer(200, null), doing, false);
    }
  }

  /** {@code quote} says whether Vault's text is quoted, which may repeat the request. */
  private KmsException failure(Answer answer, String doing, boolean quote) {
    int status = answer.status();
    String said = answer.errors();
    String why = quote && !said.matches("(?s).*\\b(hv[sbr]|[sbr])\\.\\w.*") ? said : "";
    if (status == 401 || status == 403) {
      why = "the token is wrong or has expired, or its policy does not allow it";
    } else if (answer.body() == null) {
      why = "it does not answer as Vault does: is it a proxy, or has it another address?";
    } else if (said.contains("no handler for route")) {
      why = "nothing is mounted there: see kms.vault.mount-path, auth-mount-path and namespace";
    } else if (TRANSIENT.contains(status)) {
      why = said.contains("is sealed") ? "it is sealed" : "it is not able to answer";
    }
    return new KmsException("cannot %s in %s: %s (HTTP %s)", doing, this, why, status);
  }

  /**
   * Calls Vault. If {@code renews} and the token has expired, or its uses are used up, calls again
   * with another one, as often as there is one.
   */
  private Answer call(String method, String path, JSONObject body, boolean renews) {
    String used = otherToken(null);
    Answer first = send(method, path, used, body);
    Answer answer = first;
    try {
      for (int useless = 0; answer.status() == 403 && renews && useless < MAX_USELESS_TOKENS; ) {
        useless += used.equals(served) ? 0 : 1;
        used = otherToken(used);
        if (used == null) {
          return first;
        }
        answer = send(method, path, used, body);
      }
    } catch (KmsException noLogin) {
      return first; // a secret ID may be for one login only, and the first answer says more
    }
    if (answer.status() == 403) {
      return first;
    }
    served = used;
    return answer;
  }

  /** Returns a token other than {@code used}; null if there is none. */
  private synchronized String otherToken(String used) {
    if (Objects.equals(token, used) && (used == null || hasExpired(used))) {
      token = auth.equals("token") ? configuredToken() : logIn();
    }
    return Objects.equals(token, used) ? null : token;
  }

  /** Says whether a 403 may be because of the token. Vault's text is the same for the policy. */
  private boolean hasExpired(String used) {
    return auth.equals("token")
        ? !configuredToken().equals(used)
        : send("GET", "auth/token/lookup-self", used, null).status() == 403;
  }

  private String logIn() {
    JSONObject body = new JSONObject();
    if (auth.equals("approle")) {
      String file = get("kms.vault.secret-id-file", null);
      String given = get("kms.vault.secret-id", null);
      body.put("role_id", get("kms.vault.role-id", null));
      body.putOpt("secret_id", file == null ? given : PrivateFile.credential(file));
    } else {
      body.put("role", get("kms.vault.role", null));
      body.put("jwt", PrivateFile.credential(get("kms.vault.jwt-file", JWT_FILE)));
    }
    String mount = "auth/" + mount("auth-mount-path", auth);
    Answer answer = send("POST", mount + "/login", "", body);
    // Some versions of Vault say 500 to a wrong secret ID.
    KmsException.when(
        Set.of(400, 401, 403).contains(answer.status())
            || answer.errors().contains("invalid secret id"),
        "Vault at %s refused the login by %s: the role or credential is wrong or has expired, or "
            + "nothing is mounted at %s (HTTP %s)", url, auth, mount, answer.status());
    KmsException.when(
        answer.isGood() && answer.object("auth").opt("mfa_requirement") instanceof JSONObject,
        "Vault at %s asks for a second factor (MFA) at the login by %s, which a program cannot give: "
            + "use a role without MFA", url, auth);
    KmsException.when(
        answer.isGood() && answer.body().opt("wrap_info") instanceof JSONObject,
        "Vault at %s wraps its answer to the login by %s, so that it has no token: the role at %s "
            + "must not wrap answers", url, auth, mount);
    String given = answer.isGood() ? answer.object("auth").optString("client_token") : "";
    if (!given.matches(PrivateFile.CREDENTIAL)) {
      throw failure(answer, "log in by " + auth, false);
    }
    return given;
  }

  private String configuredToken() {
    String file = get("kms.vault.token-file", null);
    String given = get("kms.vault.token", System.getenv("VAULT_TOKEN"));
    if (file != null || (given == null && Files.exists(PrivateFile.expanded("~/.vault-token")))) {
      return PrivateFile.credential(file == null ? "~/.vault-token" : file);
    }
    KmsException.when(
        given == null || !given.strip().matches(PrivateFile.CREDENTIAL),
        "there is no token for Vault: set kms.vault.token-file or VAULT_TOKEN, or kms.vault.auth");
    return given.strip();
  }

  private Answer send(String method, String path, String withToken, JSONObject body) {
    String content = body == null ? "" : body.toString();
    HttpRequest.Builder request =
        HttpRequest.newBuilder(URI.create(url + "/v1/" + path))
            .timeout(timeout("kms.read-timeout-ms", 10_000))
            .header("X-Vault-Request", "true")
            .method(method, BodyPublishers.ofString(content));
    if (!withToken.isEmpty()) {
      request.header("X-Vault-Token", withToken);
    }
    if (!namespace.isEmpty()) {
      request.header("X-Vault-Namespace", namespace);
    }
    for (int attempt = 1; ; attempt++) {
      try {
        HttpResponse<InputStream> response =
            http.send(request.build(), BodyHandlers.ofInputStream());
        int status = response.statusCode();
        boolean again = TRANSIENT.contains(status) && !(status == 500 && path.startsWith("auth/"));
        try (InputStream answer = response.body()) {
          if (!again || attempt == maxAttempts) {
            return answer(status, answer.readNBytes(MAX_ANSWER_SIZE + 1));
          }
        }
        // Random, so that workers that failed together do not try again together.
        long longest = Math.min(FIRST_WAIT_MS << Math.min(attempt - 1, 16), MAX_WAIT_MS);
        Thread.sleep(ThreadLocalRandom.current().nextLong(longest / 2, longest));
      } catch (IOException error) {
        boolean tls = error instanceof SSLException;
        if (tls || attempt == maxAttempts) {
          throw new KmsException(
              "Vault at %s cannot be reached, in at most %s attempts: %s", url, maxAttempts,
              tls ? tlsCause(error) : error.getClass().getName());
        }
      } catch (InterruptedException interrupted) {
        Thread.currentThread().interrupt();
        throw new KmsException("interrupted while Vault was asked");
      }
    }
  }

  /** Says why a TLS connection failed, in Python's words (ags1/kms/causes.py). */
  private static String tlsCause(Throwable error) {
    String otherwise =
        "the TLS connection failed: does the server speak TLS, or is the address one of http: ?";
    for (Throwable each = error; each != null; each = each.getCause()) {
      String text = Objects.requireNonNullElse(each.getMessage(), "");
      if (each instanceof CertificateExpiredException) {
        return "the server's certificate has expired";
      }
      if (each instanceof CertificateNotYetValidException) {
        return "the server's certificate is not yet valid: is the clock of this machine right?";
      }
      if (text.startsWith("No subject alternative") || text.startsWith("No name matching")) {
        return "the server's certificate is not valid for the host that the address names";
      }
      if (text.contains("certificate_required") || text.contains("bad_certificate")) {
        return "the server demands a client certificate (kms.vault.client-cert names one)";
      }
      if (each instanceof CertPathBuilderException || each instanceof CertPathValidatorException) {
        otherwise =
            "the server's certificate is not trusted; kms.vault.ca-cert names that of its authority";
      }
    }
    return otherwise;
  }

  private static Answer answer(int status, byte[] content) {
    try {
      JSONObject body = content.length == 0 && status == 204 ? new JSONObject() : json(content);
      return new Answer(status, status <= 204 || body.has("errors") ? body : null);
    } catch (JSONException noJson) {
      return new Answer(status, null);
    }
  }

  private String checkedUrl() {
    String text = get("kms.vault.url", System.getenv("VAULT_ADDR"));
    refuseIf( // without the text, which may hold a password
        text == null || !text.matches(URL) || !isPort(URI.create(text).getPort()),
        "the property 'kms.vault.url' (or VAULT_ADDR) is not of the form https://host:8200/path");
    String host = Objects.requireNonNullElse(URI.create(text).getHost(), "");
    refuseIf(
        text.startsWith("http:") && !host.matches(LOOPBACK)
            && !flag("kms.allow-plaintext-http", false),
        "the property 'kms.vault.url' (or VAULT_ADDR) is not https: keys would cross the network "
            + "unencrypted; give an https address, or set 'kms.allow-plaintext-http' to 'true'");
    return text.replaceAll("/+$", "");
  }

  private static boolean isPort(int port) { return port == -1 || (port > 0 && port < 1 << 16); }

  private Duration timeout(String name, int otherwise) {
    return Duration.ofMillis(number(name, otherwise, 3_600_000));
  }

  private String mount(String name, String otherwise) {
    String path = get(PREFIX + name, otherwise).replaceAll("^/+|/+$", "");
    refuseIf(
        !path.matches("[\\w-][\\w.-]*(/[\\w-][\\w.-]*)*"),
        "the property '%s%s' is not the path of a mount", PREFIX, name);
    return path;
  }

  private static boolean isGiven(String path) { return path != null && !path.isEmpty(); }

  /** {@code cert} and {@code key} are the client's own, which Vault may demand; or null. */
  private static SSLContext tls(String authorities, String cert, String key) {
    List<String> files = Stream.of(authorities, cert, key).filter(VaultKms::isGiven).toList();
    try {
      TrustManager[] trusted = null;
      if (isGiven(authorities)) {
        KeyStore store = emptyStore();
        for (Certificate each : certificates(authorities)) {
          store.setCertificateEntry("ca" + store.size(), each);
        }
        TrustManagerFactory factory =
            TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(store);
        trusted = factory.getTrustManagers();
      }
      KeyManager[] own = null;
      if (isGiven(cert)) {
        KeyStore store = emptyStore();
        store.setKeyEntry("client", privateKey(key), new char[0], certificates(cert));
        KeyManagerFactory factory =
            KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        factory.init(store, new char[0]);
        own = factory.getKeyManagers();
      }
      SSLContext context = SSLContext.getInstance("TLS");
      context.init(own, trusted, null);
      return context;
    } catch (IOException | GeneralSecurityException | IllegalArgumentException error) {
      throw new IllegalArgumentException(
          "cannot read certificates, or an unencrypted private key in PKCS#8, from " + files
              + " (kms.vault.ca-cert, client-cert and client-key)"); // the cause may quote a key
    }
  }

  private static KeyStore emptyStore() throws IOException, GeneralSecurityException {
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    return store;
  }

  private static Certificate[] certificates(String path)
      throws IOException, GeneralSecurityException {
    try (InputStream pem = Files.newInputStream(PrivateFile.expanded(path))) {
      return CertificateFactory.getInstance("X.509")
          .generateCertificates(pem)
          .toArray(Certificate[]::new);
    }
  }

  private static PrivateKey privateKey(String path) throws IOException, GeneralSecurityException {
    String pem = Files.readString(PrivateFile.expanded(path));
    String text =
        pem.replaceFirst("(?s).*-----BEGIN PRIVATE KEY-----(.*)-----END PRIVATE KEY.*", "$1");
    PKCS8EncodedKeySpec spec = new PKCS8EncodedKeySpec(Base64.getMimeDecoder().decode(text));
    for (String algorithm : List.of("RSA", "EC", "EdDSA")) {
      try {
        return KeyFactory.getInstance(algorithm).generatePrivate(spec);
      } catch (InvalidKeySpecException another) {
        continue;
      }
    }
    throw new InvalidKeySpecException();
  }
}
