package ags1.interop;

import ags1.iceberg.kms.KmsClients;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import org.apache.iceberg.encryption.KeyManagementClient;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;

/** The KMS clients of our plug-in. */
final class PluginKms {
  private static final HexFormat HEX = HexFormat.of();

  private PluginKms() {}

  /** Wraps a key by one client, and unwraps by another what else is given. */
  static Object use(JsonNode arguments) {
    KeyManagementClient kms = client(arguments);
    String keyId = arguments.get("key_id").asText();
    Map<String, String> made = new HashMap<>();
    if (arguments.has("key")) {
      made.put("wrapped", hex(kms.wrapKey(bytes(arguments.get("key")), keyId)));
    }
    if (arguments.has("wrapped")) {
      made.put("key", hex(kms.unwrapKey(bytes(arguments.get("wrapped")), keyId)));
    }
    kms.close();
    return made;
  }

  /** Returns what a task of Spark gets of a client, and the client's type there. */
  static Object serialized(JsonNode arguments) throws Exception {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    new ObjectOutputStream(bytes).writeObject(client(arguments));
    ByteArrayInputStream sent = new ByteArrayInputStream(bytes.toByteArray());
    KeyManagementClient there = (KeyManagementClient) new ObjectInputStream(sent).readObject();
    Map<String, String> made = new HashMap<>();
    made.put("bytes", HEX.formatHex(bytes.toByteArray()));
    try {
      made.put("key", hex(there.unwrapKey(bytes(arguments.get("wrapped")), "default")));
    } catch (RuntimeException refused) {
      made.put("refused", refused.getMessage());
    }
    return made;
  }

  private static KeyManagementClient client(JsonNode arguments) {
    Map<String, String> properties = new HashMap<>();
    arguments
        .get("properties")
        .fields()
        .forEachRemaining(field -> properties.put(field.getKey(), field.getValue().asText()));
    return KmsClients.of(properties);
  }

  private static ByteBuffer bytes(JsonNode text) {
    return ByteBuffer.wrap(HEX.parseHex(text.asText()));
  }

  private static String hex(ByteBuffer buffer) {
    byte[] bytes = new byte[buffer.remaining()];
    buffer.get(bytes);
    return HEX.formatHex(bytes);
  }
}
