package ags1.iceberg.kms;

import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLHandshakeException;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509ExtendedTrustManager;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;
import org.json.JSONParserConfiguration;

/**
 * The HTTP API of a Vault server, with a login. It repeats calls as Vault's own client does, and
 * follows no redirects, because the token would be sent with them. {@code http} is for tests; it is
 * refused to another machine unless {@code kms.allow-plaintext-http} is true.
 */
final class VaultServer {
  private static final String PREFIX = "kms.vault.";
  private static final String URL = PREFIX + "url";
  private static final String NAMESPACE = PREFIX + "namespace";
  private static final String MOUNT_PATH = PREFIX + "mount-path";
  private static final String CA_CERT = PREFIX + "ca-cert";
  private static final String VERIFY = PREFIX + "verify";
  private static final String AUTH = PREFIX + "auth";
  private static final String TOKEN = PREFIX + "token";
  private static final String TOKEN_FILE = PREFIX + "token-file";
  private static final String ROLE_ID = PREFIX + "role-id";
  private static final String SECRET_ID = PREFIX + "secret-id";
  private static final String SECRET_ID_FILE = PREFIX + "secret-id-file";
  private static final String AUTH_MOUNT_PATH = PREFIX + "auth-mount-path";
  private static final String ROLE = PREFIX + "role";
  private static final String JWT_FILE = PREFIX + "jwt-file";
  private static final List<String> KNOWN =
      List.of(
          URL, NAMESPACE, MOUNT_PATH, CA_CERT, VERIFY, AUTH, TOKEN, TOKEN_FILE, ROLE_ID, SECRET_ID,
          SECRET_ID_FILE, AUTH_MOUNT_PATH, ROLE, JWT_FILE);
  private static final String DEFAULT_JWT_FILE =
      "/var/run/secrets/kubernetes.io/serviceaccount/token";
  private static final String LOOPBACK =
      "localhost|.*\\.localhost|127(\\.[0-9]{1,3}){3}|\\[(0*:)+0*1\\]";
  private static final String CREDENTIAL = "[\\x21-\\x7e]{1,65536}";
  private static final int MAX_CREDENTIAL_SIZE = 65_536;
  private static final int MAX_ANSWER_SIZE = 4 << 20;
  // 412: a replica is not yet up to date. A login with a wrong secret ID may give a 500.
  private static final Set<Integer> TRANSIENT = Set.of(412, 429, 500, 502, 503, 504);
  private static final long FIRST_WAIT_MS = 200;
  private static final long MAX_WAIT_MS = 10_000;

  private final KmsProperties properties;
  private final String url;
  private final String namespace;
  private final String mountPath;
  private final String auth;
  private final String authMountPath;
  private final int maxAttempts;
  private final Duration timeout;
  private final HttpClient http;
  private String token;

  /** {@code body} is null if the answer has not the form of Vault's. */
  record Answer(int status, JSONObject body) {
    boolean isGood() {
      return body != null && (status == 200 || status == 204);
    }

    JSONObject data() {
      return Objects.requireNonNullElseGet(body.optJSONObject("data"), JSONObject::new);
    }

    String errors() {
      JSONArray errors = body == null ? null : body.optJSONArray("errors");
      return errors == null
          ? ""
          : errors.toList().stream().map(String::valueOf).collect(Collectors.joining("; "));
    }

    @Override
    public String toString() {
      return "Answer[status=" + status + "]";
    }
  }

  VaultServer(KmsProperties properties) {
    this.properties = properties;
    properties.checkNames(PREFIX, KNOWN);
    properties.refuseBoth(TOKEN, TOKEN_FILE);
    properties.refuseBoth(SECRET_ID, SECRET_ID_FILE);
    this.url = checkedUrl();
    this.namespace = properties.get(NAMESPACE, System.getenv("VAULT_NAMESPACE"));
    this.mountPath = path(MOUNT_PATH, "transit");
    this.auth = properties.get(AUTH, "token");
    if (!Set.of("token", "approle", "kubernetes").contains(auth)) {
      throw new IllegalArgumentException(
          "the property '" + AUTH + "' is none of 'token', 'approle', 'kubernetes'");
    }
    if (!auth.equals("token")) {
      properties.require(auth.equals("approle") ? ROLE_ID : ROLE);
    }
    this.authMountPath = path(AUTH_MOUNT_PATH, auth);
    this.maxAttempts = properties.number("kms.max-attempts", 4, 100);
    this.timeout = Duration.ofMillis(properties.number("kms.read-timeout-ms", 10_000, 3_600_000));
    HttpClient.Builder builder =
        HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1)
            .followRedirects(HttpClient.Redirect.NEVER)
            .connectTimeout(
                Duration.ofMillis(properties.number("kms.connect-timeout-ms", 3_000, 3_600_000)));
    if (url.startsWith("https:")) {
      SSLContext trusted = trusted();
      http = (trusted == null ? builder : builder.sslContext(trusted)).build();
    } else {
      http = builder.proxy(HttpClient.Builder.NO_PROXY).build(); // it would see the keys
    }
  }

  String mountPath() {
    return mountPath;
  }

  @Override
  public String toString() {
    return "Vault's " + (namespace == null ? "" : namespace + "/") + mountPath + " at " + url;
  }

  /** Calls Vault. If the token has expired and {@code renews}, calls again with another one. */
  Answer call(String method, String path, JSONObject body, boolean renews) {
    String used = renewed(null);
    Answer answer = send(method, path, used, body);
    if (answer.status() == 403 && renews) {
      String other;
      try {
        other = renewed(used);
      } catch (KmsException noLogin) {
        return answer; // a secret ID may be for one login only, and the first answer says more
      }
      return other == null ? answer : send(method, path, other, body);
    }
    return answer;
  }

  KmsException isNoVault(String what) {
    return new KmsException(
        "%s does not answer as Vault does (%s): is it another server, or a proxy?", url, what);
  }

  KmsException failure(Answer answer, String doing, boolean quote) {
    int status = answer.status();
    String why;
    if (status >= 300 && status < 400) {
      why = "it sends us to another address, which is not followed: set " + URL + " to the active "
          + "node, or to a load balancer";
    } else if (answer.errors().contains("is sealed")) {
      why = "it is sealed";
    } else if (status == 501) {
      why = "it is not initialized";
    } else if (TRANSIENT.contains(status)) {
      why = "it is not able to answer, in at most " + maxAttempts + " attempts";
    } else if (answer.body() == null) {
      return isNoVault("HTTP " + status + " and no JSON of Vault's");
    } else if (status == 401 || status == 403) {
      why = "the token is wrong or has expired, or its policy does not allow it on " + mountPath;
    } else if (answer.errors().contains("no handler for route")) {
      why = "nothing is mounted there: see " + MOUNT_PATH + ", " + AUTH_MOUNT_PATH + ", "
          + NAMESPACE;
    } else {
      // A token was in the request, too.
      String said = quote && !answer.errors().matches("(?s).*(hv[sbr]|\\b[sbr])\\.\\w.*")
          ? answer.errors().replaceAll("\\s+", " ") : "";
      why = said.substring(0, Math.min(said.length(), 300));
    }
    return new KmsException("cannot %s in %s: %s (HTTP %s)", doing, this, why, status);
  }

  /** Returns a token other than {@code used}; null if there is none. */
  private synchronized String renewed(String used) {
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
      String file = properties.get(SECRET_ID_FILE);
      body.put("role_id", properties.require(ROLE_ID));
      body.putOpt(
          "secret_id", file == null ? properties.get(SECRET_ID) : credential(file, SECRET_ID_FILE));
    } else {
      String file = properties.get(JWT_FILE, DEFAULT_JWT_FILE);
      body.put("role", properties.require(ROLE)).put("jwt", credential(file, JWT_FILE));
    }
    Answer answer = send("POST", "auth/" + authMountPath + "/login", null, body);
    // Some versions of Vault say 500 to a wrong secret ID.
    if (Set.of(400, 401, 403).contains(answer.status())
        || answer.errors().contains("invalid secret id")) {
      throw new KmsException(
          "Vault at %s refused the login by %s: the role or credential is wrong or has expired, or "
              + "nothing is mounted at auth/%s (%s) (HTTP %s)",
          url, auth, authMountPath, AUTH_MOUNT_PATH, answer.status());
    }
    if (!answer.isGood()) {
      throw failure(answer, "log in by " + auth, false);
    }
    JSONObject given = answer.body().optJSONObject("auth");
    String fresh = given == null ? "" : given.optString("client_token");
    if (!fresh.matches(CREDENTIAL)) {
      throw isNoVault("a login without a token");
    }
    return fresh;
  }

  private String configuredToken() {
    String file = properties.get(TOKEN_FILE);
    String given = properties.get(TOKEN, System.getenv("VAULT_TOKEN"));
    Path own = Path.of(PrivateFile.home(), ".vault-token");
    if (file != null) {
      return credential(file, TOKEN_FILE);
    }
    if (given == null && Files.exists(own)) {
      return credential(own.toString(), "of `vault login`");
    }
    if (given == null || !given.strip().matches(CREDENTIAL)) {
      throw new KmsException(
          "there is no token for Vault: %s, %s, VAULT_TOKEN or `vault login` gives one, or %s is "
              + "approle or kubernetes",
          TOKEN_FILE, TOKEN, AUTH);
    }
    return given.strip();
  }

  private static String credential(String path, String name) {
    try (InputStream file = Files.newInputStream(PrivateFile.expanded(path))) {
      byte[] bytes = file.readNBytes(MAX_CREDENTIAL_SIZE + 1);
      String text = new String(bytes, StandardCharsets.ISO_8859_1).strip();
      if (text.matches(CREDENTIAL)) {
        return text;
      }
    } catch (IOException error) {
      throw new KmsException("cannot read %s (%s): %s", path, name, error.getClass().getName());
    }
    throw new KmsException("there is no credential in %s (%s)", path, name);
  }

  private Answer send(String method, String path, String withToken, JSONObject body) {
    HttpRequest.Builder request =
        HttpRequest.newBuilder(URI.create(url + "/v1/" + path))
            .timeout(timeout)
            .header("X-Vault-Request", "true")
            .method(
                method,
                body == null
                    ? HttpRequest.BodyPublishers.noBody()
                    : HttpRequest.BodyPublishers.ofString(body.toString()));
    if (body != null) {
      request.header("Content-Type", "application/json");
    }
    if (withToken != null) {
      request.header("X-Vault-Token", withToken);
    }
    if (namespace != null && !namespace.isEmpty()) {
      request.header("X-Vault-Namespace", namespace);
    }
    for (int attempt = 1; ; attempt++) {
      long wait = waitMs(attempt);
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
        String asked = response.headers().firstValue("Retry-After").orElse("");
        wait = asked.matches("[0-9]{1,9}") ? Math.min(Long.parseLong(asked) * 1000, MAX_WAIT_MS) : wait;
      } catch (SSLHandshakeException untrusted) {
        throw new KmsException(
            "Vault at %s: its certificate is not trusted; %s names a file with the certificate of "
                + "the authority that signed it",
            url, CA_CERT);
      } catch (IOException error) {
        if (attempt == maxAttempts) {
          throw new KmsException(
              "Vault at %s cannot be reached: %s, in at most %s attempts",
              url, error.getClass().getName(), maxAttempts);
        }
      } catch (InterruptedException interrupted) {
        throw interrupted();
      }
      try {
        Thread.sleep(wait);
      } catch (InterruptedException interrupted) {
        throw interrupted();
      }
    }
  }

  private static KmsException interrupted() {
    Thread.currentThread().interrupt();
    return new KmsException("interrupted while Vault was asked");
  }

  // Random, so that workers that failed together do not try again together.
  private static long waitMs(int attempt) {
    long longest = Math.min(FIRST_WAIT_MS << Math.min(attempt - 1, 16), MAX_WAIT_MS);
    return ThreadLocalRandom.current().nextLong(longest / 2, longest);
  }

  private Answer answer(int status, byte[] content) {
    if (content.length > MAX_ANSWER_SIZE) {
      throw isNoVault("more than 4 MiB");
    }
    if (content.length == 0) {
      return new Answer(status, status == 204 ? new JSONObject() : null);
    }
    try {
      String text = new String(content, StandardCharsets.UTF_8);
      JSONObject body =
          new JSONObject(text, new JSONParserConfiguration().withStrictMode(true));
      return new Answer(status, status == 200 || body.has("errors") ? body : null);
    } catch (JSONException noJson) {
      return new Answer(status, null);
    }
  }

  private String checkedUrl() {
    String text = properties.get(URL, System.getenv("VAULT_ADDR"));
    String name = "the property '" + URL + "' (or VAULT_ADDR)";
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
      throw new IllegalArgumentException(name + " is not of the form https://host:8200/path");
    }
    if (address.getScheme().equals("http")
        && !address.getHost().toLowerCase().matches(LOOPBACK)
        && !properties.flag("kms.allow-plaintext-http", false)) {
      throw new IllegalArgumentException(
          name + " is not https: keys would cross the network unencrypted; give an https address, "
              + "or allow it with 'kms.allow-plaintext-http' = 'true'");
    }
    return text.replaceAll("/+$", "");
  }

  private String path(String name, String otherwise) {
    String path = properties.get(name, otherwise).replaceAll("^/+|/+$", "");
    if (!path.matches("[\\w-][\\w.-]*(/[\\w-][\\w.-]*)*")) {
      throw new IllegalArgumentException("the property '" + name + "' is not the path of a mount");
    }
    return path;
  }

  /** Returns what is trusted; null for the JDK's certificates. */
  private SSLContext trusted() {
    boolean verifies = properties.flag(VERIFY, true);
    String file = properties.get(CA_CERT, System.getenv("VAULT_CACERT"));
    String given = verifies && file == null ? System.getenv("VAULT_CAPATH") : file;
    if (!verifies && properties.get(CA_CERT) != null) {
      throw new IllegalArgumentException(
          "'" + CA_CERT + "' is given, but '" + VERIFY + "' is 'false'");
    }
    if (verifies && (given == null || given.isEmpty())) {
      return null;
    }
    try {
      TrustManager[] managers = {new TrustsAll()};
      if (verifies) {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        Path path = PrivateFile.expanded(given);
        try (Stream<Path> found = Files.isDirectory(path) ? Files.list(path) : Stream.of(path)) {
          for (Path each : found.filter(Files::isRegularFile).toList()) {
            try (InputStream pem = Files.newInputStream(each)) {
              for (Certificate certificate :
                  CertificateFactory.getInstance("X.509").generateCertificates(pem)) {
                store.setCertificateEntry("ca" + store.size(), certificate);
              }
            }
          }
        }
        TrustManagerFactory factory =
            TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(store);
        managers = factory.getTrustManagers();
      }
      SSLContext context = SSLContext.getInstance("TLS");
      context.init(null, managers, null);
      return context;
    } catch (IOException | GeneralSecurityException error) {
      throw new IllegalArgumentException(
          "cannot read certificates from " + given + " (" + CA_CERT + " or VAULT_CACERT)");
    }
  }

  /** For {@code kms.vault.verify} = false: whoever answers gets the token and the keys. */
  private static final class TrustsAll extends X509ExtendedTrustManager {
    @Override
    public void checkClientTrusted(X509Certificate[] chain, String type, Socket socket) {}

    @Override
    public void checkServerTrusted(X509Certificate[] chain, String type, Socket socket) {}

    @Override
    public void checkClientTrusted(X509Certificate[] chain, String type, SSLEngine engine) {}

    @Override
    public void checkServerTrusted(X509Certificate[] chain, String type, SSLEngine engine) {}

    @Override
    public void checkClientTrusted(X509Certificate[] chain, String type) {}

    @Override
    public void checkServerTrusted(X509Certificate[] chain, String type) {}

    @Override
    public X509Certificate[] getAcceptedIssuers() {
      return new X509Certificate[0];
    }
  }
}
