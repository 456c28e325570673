package ags1.iceberg;

import java.nio.ByteBuffer;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.iceberg.encryption.KeyManagementClient;

/**
 * A KMS client that remembers unwrapped keys for an hour, as Iceberg's encryption manager does. It
 * does so beyond one version of a table's metadata, each of which has a manager of its own. The
 * keys are not serialized.
 */
final class CachingKms implements KeyManagementClient {
  private static final long LIFETIME_NS = TimeUnit.HOURS.toNanos(1);
  private static final int MAX_KEYS = 10_000;

  private final KeyManagementClient inner;
  private transient Map<Wrapped, Unwrapped> keys;

  private record Wrapped(ByteBuffer key, String keyId) {}

  private record Unwrapped(ByteBuffer key, long sinceNs) {}

  CachingKms(KeyManagementClient inner) {
    this.inner = inner;
  }

  @Override
  public ByteBuffer wrapKey(ByteBuffer key, String keyId) {
    return inner.wrapKey(key, keyId);
  }

  @Override
  public synchronized ByteBuffer unwrapKey(ByteBuffer wrapped, String keyId) {
    if (keys == null) {
      keys = new LinkedHashMap<>();
    }
    Wrapped asked = new Wrapped(wrapped.duplicate(), keyId);
    Unwrapped known = keys.get(asked);
    if (known == null || System.nanoTime() - known.sinceNs() > LIFETIME_NS) {
      keys.remove(asked);
      if (keys.size() >= MAX_KEYS) {
        keys.remove(keys.keySet().iterator().next());
      }
      known = new Unwrapped(inner.unwrapKey(wrapped.duplicate(), keyId), System.nanoTime());
      keys.put(asked, known);
    }
    return known.key().duplicate();
  }

  @Override
  public void initialize(Map<String, String> properties) {
    throw new UnsupportedOperationException("the client inside is initialized already");
  }

  @Override public void close() { inner.close(); }
}
