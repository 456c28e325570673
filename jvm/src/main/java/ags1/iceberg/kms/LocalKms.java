package ags1.iceberg.kms;

import java.nio.ByteBuffer;
import java.util.Map;
import org.apache.iceberg.encryption.KeyManagementClient;

/**
 * The master keys of a keyring file, which {@code ags1 keygen} makes.
 *
 * <p>A wrapped key is {@code 01 | key version: uint32 BE | nonce(12) | ciphertext | tag(16)},
 * AES-256-GCM, with the first five bytes as additional data. The properties are those of Python:
 * {@code kms.local.keyring}, {@code kms.local.passphrase-file}, {@code kms.local.passphrase},
 * {@code kms.allow-readable-files}.
 */
public final class LocalKms implements KeyManagementClient {
  private static final byte FORMAT = 1;
  private static final int PREFIX_SIZE = 5;

  private KmsProperties properties;
  private transient Keyring keyring;

  @Override
  public void initialize(Map<String, String> given) {
    properties = new KmsProperties(given);
    keyring();
  }

  @Override
  public ByteBuffer wrapKey(ByteBuffer key, String keyId) {
    Keyring.MasterKey master = keyring().get(keyId, null);
    byte[] prefix =
        ByteBuffer.allocate(PREFIX_SIZE).put(FORMAT).putInt((int) master.current()).array();
    byte[] masterKey = master.versions().get(master.current());
    byte[] sealed = AesGcm.seal(masterKey, AesGcm.bytes(key), prefix);
    return ByteBuffer.allocate(PREFIX_SIZE + sealed.length).put(prefix).put(sealed).flip();
  }

  @Override
  public ByteBuffer unwrapKey(ByteBuffer wrapped, String keyId) {
    ByteBuffer rest = wrapped.duplicate();
    if (rest.remaining() < PREFIX_SIZE || rest.get(rest.position()) != FORMAT) {
      throw new KmsException(
          "no keyring wrapped it: the master key '%s' is another KMS's, or the wrapped key is "
              + "damaged",
          keyId);
    }
    byte[] prefix = new byte[PREFIX_SIZE];
    rest.get(prefix);
    long version = Integer.toUnsignedLong(ByteBuffer.wrap(prefix).getInt(1));
    byte[] masterKey = keyring().get(keyId, version).versions().get(version);
    byte[] key = AesGcm.open(masterKey, AesGcm.bytes(rest), prefix);
    if (key == null) {
      throw new KmsException(
          "the master key '%s' in %s does not open the wrapped key: another key of that name "
              + "wrapped it, or it was changed",
          keyId, keyring());
    }
    return ByteBuffer.wrap(key);
  }

  private synchronized Keyring keyring() {
    if (keyring == null) {
      keyring = new Keyring(properties);
    }
    return keyring;
  }
}
