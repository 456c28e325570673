package ags1.iceberg.kms;

import static java.nio.charset.StandardCharsets.ISO_8859_1;
import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.Arrays;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Stream;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/**
 * The HTTP API of a Vault server, with a login. It repeats calls as Vault's own client does, and
 * follows no redirects, because the token would be sent with them. Its properties begin with {@code
 * kms.vault.}, and are those of Python but {@code verify=false}.
 */
final class VaultServer {
  private static final String PREFIX = "kms.vault.";
  private static final String[] KNOWN = {
    "url", "namespace", "mount-path", "ca-cert", "auth", "token", "token-file", "role-id",
    "secret-id", "secret-id-file", "auth-mount-path", "role", "jwt-file", "verify"
  };
  private static final String DEFAULT_JWT_FILE =
      "/var/run/secrets/kubernetes.io/serviceaccount/token";
  private static final String LOOPBACK =
      "(?i)localhost|.*\\.localhost|127(\\.[0-9]{1,3}){3}|\\[(0*:)+0*1\\]";
  private static final String CREDENTIAL = "[\\x21-\\x7e]{1,65536}";
  private static final int MAX_ANSWER_SIZE = 4 << 20;
  // 412: a replica is not yet up to date. A login with a wrong secret ID may give a 500.
  private static final Set<Integer> TRANSIENT = Set.of(412, 429, 500, 502, 503, 504);
  private static final long FIRST_WAIT_MS = 200;
  private static final long MAX_WAIT_MS = 10_000;

  private final KmsProperties properties;
  private final String url;
  private final String namespace;
  private final String auth;
  private final int maxAttempts;
  private final HttpClient http;
  private String token;

  /** {@code body} is null if the answer has not the form of Vault's. */
  record Answer(int status, JSONObject body) {
    boolean isGood() {
      return body != null && (status == 200 || status == 204);
    }

    JSONObject object(String name) {
      JSONObject found = body.optJSONObject(name);
      return found == null ? new JSONObject() : found;
    }

    String errors() {
      JSONArray errors = body == null ? null : body.optJSONArray("errors");
      return errors == null ? "" : errors.join("; ");
    }

    @Override
    public String toString() {
      return "Answer[status=" + status + "]";
    }
  }

  VaultServer(KmsProperties properties) {
    this.properties = properties;
    properties.checkNames(PREFIX, Arrays.asList(KNOWN));
    properties.refuseBoth(PREFIX + "token", PREFIX + "token-file");
    properties.refuseBoth(PREFIX + "secret-id", PREFIX + "secret-id-file");
    if (!properties.flag(PREFIX + "verify", true)) {
      throw new IllegalArgumentException(
          "kms.vault.verify=false is for Python alone: name the authority in kms.vault.ca-cert");
    }
    url = checkedUrl();
    namespace = get("namespace", System.getenv("VAULT_NAMESPACE"));
    auth = get("auth", "token");
    switch (auth) {
      case "token" -> {}
      case "approle" -> properties.require(PREFIX + "role-id");
      case "kubernetes" -> properties.require(PREFIX + "role");
      default -> throw new IllegalArgumentException(
          "the property 'kms.vault.auth' is none of 'token', 'approle', 'kubernetes'");
    }
    maxAttempts = properties.number("kms.max-attempts", 4, 100);
    HttpClient.Builder builder =
        HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1)
            .followRedirects(HttpClient.Redirect.NEVER)
            .connectTimeout(timeout("kms.connect-timeout-ms", 3_000));
    if (url.startsWith("http:")) {
      builder.proxy(HttpClient.Builder.NO_PROXY); // it would see the keys
    }
    String authorities = get("ca-cert", System.getenv("VAULT_CACERT"));
    if (authorities != null && !authorities.isEmpty()) {
      builder.sslContext(trusting(PrivateFile.expanded(authorities)));
    }
    http = builder.build();
  }

  String mountPath() {
    return path("mount-path", "transit");
  }

  @Override
  public String toString() {
    return "Vault's " + (namespace == null ? "" : namespace + "/") + mountPath() + " at " + url;
  }

  /** Calls Vault. If the token has expired and {@code renews}, calls again with another one. */
  Answer call(String method, String path, JSONObject body, boolean renews) {
    String used = otherToken(null);
    Answer answer = send(method, path, used, body);
    if (answer.status() == 403 && renews) {
      try {
        String other = otherToken(used);
        return other == null ? answer : send(method, path, other, body);
      } catch (KmsException noLogin) {
        return answer; // a secret ID may be for one login only, and the first answer says more
      }
    }
    return answer;
  }

  /** {@code quote} says whether Vault's text is quoted, which may repeat the request. */
  KmsException failure(Answer answer, String doing, boolean quote) {
    int status = answer.status();
    String said = answer.errors();
    String why = quote && !said.matches("(?s).*\\b(hv[sbr]|[sbr])\\.\\w.*") ? said : "";
    if (status == 401 || status == 403) {
      why = "the token is wrong or has expired, or its policy does not allow it";
    } else if (status >= 300 && status < 400) {
      why = "it names another address, which is not followed: set kms.vault.url to that address";
    } else if (answer.body() == null) {
      why = "it does not answer as Vault does: is it another server, or a proxy?";
    } else if (said.contains("no handler for route")) {
      why = "nothing is mounted there: see kms.vault.mount-path, auth-mount-path and namespace";
    } else if (TRANSIENT.contains(status)) {
      why = said.contains("is sealed") ? "it is sealed" : "it is not able to answer";
    }
    return new KmsException("cannot %s in %s: %s (HTTP %s)", doing, this, why, status);
  }

  /** Returns a token other than {@code used}; null if there is none. */
  private synchronized String otherToken(String used) {
    if (Objects.equals(token, used) && (used == null || hasExpired(used))) {
      token = logIn();
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
    if (auth.equals("token")) {
      return configuredToken();
    }
    JSONObject body = new JSONObject();
    if (auth.equals("approle")) {
      String file = get("secret-id-file", null);
      body.put("role_id", get("role-id", null));
      body.putOpt("secret_id", file == null ? get("secret-id", null) : credential(file));
    } else {
      body.put("role", get("role", null));
      body.put("jwt", credential(get("jwt-file", DEFAULT_JWT_FILE)));
    }
    Answer answer = send("POST", "auth/" + path("auth-mount-path", auth) + "/login", null, body);
    // Some versions of Vault say 500 to a wrong secret ID.
    if (Set.of(400, 401, 403).contains(answer.status())
        || answer.errors().contains("invalid secret id")) {
      throw new KmsException(
          "Vault at %s refused the login by %s: the role or credential is wrong or has expired, or "
              + "nothing is mounted at auth/%s (HTTP %s)",
          url, auth, path("auth-mount-path", auth), answer.status());
    }
    String given = answer.isGood() ? answer.object("auth").optString("client_token") : "";
    if (!given.matches(CREDENTIAL)) {
      throw failure(answer, "log in by " + auth, false);
    }
    return given;
  }

  private String configuredToken() {
    String file = get("token-file", null);
    String given = get("token", System.getenv("VAULT_TOKEN"));
    Path own = Path.of(PrivateFile.home(), ".vault-token");
    if (file != null || (given == null && Files.exists(own))) {
      return credential(file == null ? own.toString() : file);
    }
    if (given == null || !given.strip().matches(CREDENTIAL)) {
      throw new KmsException(
          "there is no token for Vault: kms.vault.token-file, kms.vault.token, VAULT_TOKEN or `vault "
              + "login` gives one, or kms.vault.auth is approle or kubernetes");
    }
    return given.strip();
  }

  private static String credential(String path) {
    try (InputStream file = Files.newInputStream(PrivateFile.expanded(path))) {
      String text = new String(file.readNBytes(65_537), ISO_8859_1).strip();
      if (text.matches(CREDENTIAL)) {
        return text;
      }
    } catch (IOException error) {
      throw new KmsException("cannot read the credential in %s (%s)", path, error.getClass());
    }
    throw new KmsException("there is no credential in %s", path);
  }

  private Answer send(String method, String path, String withToken, JSONObject body) {
    HttpRequest.Builder request =
        HttpRequest.newBuilder(URI.create(url + "/v1/" + path))
            .timeout(timeout("kms.read-timeout-ms", 10_000))
            .header("X-Vault-Request", "true")
            .method(
                method,
                body == null
                    ? HttpRequest.BodyPublishers.noBody()
                    : HttpRequest.BodyPublishers.ofString(body.toString()));
    Stream.of(new String[] {"X-Vault-Token", withToken}, new String[] {"X-Vault-Namespace", namespace})
        .filter(header -> header[1] != null && !header[1].isEmpty())
        .forEach(header -> request.header(header[0], header[1]));
    for (int attempt = 1; ; attempt++) {
      try {
        HttpResponse<InputStream> response =
            http.send(request.build(), HttpResponse.BodyHandlers.ofInputStream());
        int status = response.statusCode();
        boolean again = TRANSIENT.contains(status) && !(status == 500 && path.startsWith("auth/"));
        try (InputStream content = response.body()) {
          if (!again || attempt == maxAttempts) {
            return answer(status, content.readNBytes(MAX_ANSWER_SIZE + 1));
          }
        }
        // Random, so that workers that failed together do not try again together.
        long longest = Math.min(FIRST_WAIT_MS << Math.min(attempt - 1, 16), MAX_WAIT_MS);
        Thread.sleep(ThreadLocalRandom.current().nextLong(longest / 2, longest));
      } catch (IOException error) {
        boolean tls = error instanceof javax.net.ssl.SSLHandshakeException;
        if (tls || attempt == maxAttempts) {
          throw new KmsException(
              "Vault at %s cannot be reached, in at most %s attempts: %s",
              url, maxAttempts,
              tls ? "its certificate is not trusted; kms.vault.ca-cert names a file with the "
                      + "certificate of the authority that signed it"
                  : error.getClass().getName());
        }
      } catch (InterruptedException interrupted) {
        Thread.currentThread().interrupt();
        throw new KmsException("interrupted while Vault was asked");
      }
    }
  }

  private static Answer answer(int status, byte[] content) {
    if (content.length == 0) {
      return new Answer(status, status == 204 ? new JSONObject() : null);
    }
    try {
      JSONObject body = KmsProperties.json(new String(content, UTF_8));
      return new Answer(status, status == 200 || body.has("errors") ? body : null);
    } catch (JSONException noJson) {
      return new Answer(status, null);
    }
  }

  private String checkedUrl() {
    String text = get("url", System.getenv("VAULT_ADDR"));
    URI address = null;
    try {
      address = text == null ? null : new URI(text);
    } catch (java.net.URISyntaxException wrong) {
      // as below; the text may hold a password
    }
    if (address == null
        || !Set.of("http", "https").contains(String.valueOf(address.getScheme()))
        || address.getHost() == null
        || address.getRawUserInfo() != null
        || address.getRawQuery() != null
        || address.getRawFragment() != null) {
      throw new IllegalArgumentException(
          "the property 'kms.vault.url' (or VAULT_ADDR) is not of the form https://host:8200/path");
    }
    if (address.getScheme().equals("http")
        && !address.getHost().matches(LOOPBACK)
        && !properties.flag("kms.allow-plaintext-http", false)) {
      throw new IllegalArgumentException(
          "the property 'kms.vault.url' (or VAULT_ADDR) is not https: keys would cross the network "
              + "unencrypted; give an https address, or set 'kms.allow-plaintext-http' to 'true'");
    }
    return text.replaceAll("/+$", "");
  }

  private String get(String name, String otherwise) {
    return properties.get(PREFIX + name, otherwise);
  }

  private Duration timeout(String name, int otherwise) {
    return Duration.ofMillis(properties.number(name, otherwise, 3_600_000));
  }

  private String path(String name, String otherwise) {
    String path = get(name, otherwise).replaceAll("^/+|/+$", "");
    if (!path.matches("[\\w-][\\w.-]*(/[\\w-][\\w.-]*)*")) {
      throw new IllegalArgumentException(
          "the property '" + PREFIX + name + "' is not the path of a mount");
    }
    return path;
  }

  private static SSLContext trusting(Path authorities) {
    try (InputStream pem = Files.newInputStream(authorities)) {
      KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
      store.load(null, null);
      for (Certificate each : CertificateFactory.getInstance("X.509").generateCertificates(pem)) {
        store.setCertificateEntry("ca" + store.size(), each);
      }
      TrustManagerFactory factory =
          TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
      factory.init(store);
      SSLContext context = SSLContext.getInstance("TLS");
      context.init(null, factory.getTrustManagers(), null);
      return context;
    } catch (IOException | GeneralSecurityException error) {
      throw new IllegalArgumentException(
          "cannot read certificates from " + authorities + " (kms.vault.ca-cert or VAULT_CACERT)");
    }
  }
}
