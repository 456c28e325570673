package ags1.iceberg.kms;

import java.io.Serializable;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.json.JSONObject;
import org.json.JSONParserConfiguration;

/**
 * The properties of a KMS client. An empty value counts as none. Those that are secret are not
 * serialized: each process has its own credentials, in a file or in its environment.
 */
final class KmsProperties implements Serializable {
  private static final String SECRET =
      "kms\\.local\\.passphrase|kms\\.vault\\.(token|secret-id)|encryption\\.kms\\.key\\..*";

  private final HashMap<String, String> named = new HashMap<>();
  private final transient Map<String, String> secret = new HashMap<>();

  KmsProperties(Map<String, String> properties) {
    properties.forEach(
        (name, value) -> {
          if (name.matches("(encryption\\.)?kms\\..*") && value != null && !value.isEmpty()) {
            (name.matches(SECRET) ? secret : named).put(name, value);
          }
        });
  }

  String get(String name, String otherwise) {
    String hidden = secret == null ? null : secret.get(name);
    return hidden == null ? named.getOrDefault(name, otherwise) : hidden;
  }

  void require(String name) {
    if (get(name, null) == null) {
      throw new IllegalArgumentException("the property '" + name + "' is missing");
    }
  }

  boolean flag(String name, boolean otherwise) {
    String text = get(name, String.valueOf(otherwise)).toLowerCase();
    if (!text.matches("true|false")) {
      throw new IllegalArgumentException("the property '" + name + "' is not 'true' or 'false'");
    }
    return text.equals("true");
  }

  int number(String name, int otherwise, int maximum) {
    String text = get(name, String.valueOf(otherwise));
    if (!text.matches("0*[1-9][0-9]{0,8}") || Integer.parseInt(text) > maximum) {
      throw new IllegalArgumentException(
          "the property '" + name + "' is not a number from 1 to " + maximum);
    }
    return Integer.parseInt(text);
  }

  void refuseBoth(String one, String other) {
    if (get(one, null) != null && get(other, null) != null) {
      throw new IllegalArgumentException(
          "both '" + one + "' and '" + other + "' are given: give one");
    }
  }

  /** Refuses a property that begins with {@code prefix} and is not known: it may be mistyped. */
  void checkNames(String prefix, List<String> known) {
    TreeSet<String> all = new TreeSet<>(named.keySet());
    all.addAll(secret == null ? List.of() : secret.keySet());
    for (String name : all) {
      if (name.startsWith(prefix) && !known.contains(name.substring(prefix.length()))) {
        throw new IllegalArgumentException(
            String.format("the property '%s' is unknown; there are %s with %s", name, prefix, known));
      }
    }
  }

  static JSONObject json(String text) {
    return new JSONObject(text, new JSONParserConfiguration().withStrictMode(true));
  }
}
