package ags1.iceberg.kms;

import java.io.Serializable;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

/**
 * The properties of a KMS client. An empty value counts as none. Those that are secret are not
 * serialized: each process has its own credentials, in a file or in its environment.
 */
final class KmsProperties implements Serializable {
  static final String ALLOW_READABLE = "kms.allow-readable-files";

  private static final Pattern SECRET =
      Pattern.compile("kms\\.local\\.passphrase|kms\\.vault\\.(token|secret-id)|encryption\\.kms\\.key\\..*");

  private final HashMap<String, String> named = new HashMap<>();
  private final transient Map<String, String> secret = new HashMap<>();

  KmsProperties(Map<String, String> properties) {
    properties.forEach(
        (name, value) -> {
          if (name.matches("(encryption\\.)?kms\\..*") && value != null && !value.isEmpty()) {
            (SECRET.matcher(name).matches() ? secret : named).put(name, value);
          }
        });
  }

  /** Returns a value; null if there is none. */
  String get(String name) {
    return secret != null && secret.containsKey(name) ? secret.get(name) : named.get(name);
  }

  String get(String name, String otherwise) {
    String value = get(name);
    return value == null ? otherwise : value;
  }

  String require(String name) {
    String value = get(name);
    if (value == null) {
      throw new IllegalArgumentException("the property '" + name + "' is missing");
    }
    return value;
  }

  boolean flag(String name, boolean otherwise) {
    String text = get(name, String.valueOf(otherwise)).toLowerCase();
    if (!text.equals("true") && !text.equals("false")) {
      throw new IllegalArgumentException("the property '" + name + "' is not 'true' or 'false'");
    }
    return text.equals("true");
  }

  int number(String name, int otherwise, int maximum) {
    String text = get(name, String.valueOf(otherwise));
    if (!text.matches("[0-9]{1,9}")
        || Integer.parseInt(text) < 1
        || Integer.parseInt(text) > maximum) {
      throw new IllegalArgumentException(
          "the property '" + name + "' is not a number from 1 to " + maximum);
    }
    return Integer.parseInt(text);
  }

  void refuseBoth(String one, String other) {
    if (get(one) != null && get(other) != null) {
      throw new IllegalArgumentException(
          "both '" + one + "' and '" + other + "' are given: give one");
    }
  }

  Map<String, String> withPrefix(String prefix) {
    Map<String, String> found = new HashMap<>();
    for (Map<String, String> part : secret == null ? List.of(named) : List.of(named, secret)) {
      part.forEach(
          (name, value) -> {
            if (name.startsWith(prefix)) {
              found.put(name.substring(prefix.length()), value);
            }
          });
    }
    return found;
  }

  /** Refuses a property that begins with {@code prefix} and is not known: it may be mistyped. */
  void checkNames(String prefix, List<String> known) {
    for (String name : withPrefix(prefix).keySet()) {
      if (!known.contains(prefix + name)) {
        throw new IllegalArgumentException(
            "the property '" + prefix + name + "' is unknown; there are "
                + String.join(", ", known));
      }
    }
  }
}
