package ags1.iceberg;

import java.util.List;
import org.apache.iceberg.encryption.EncryptedInputFile;
import org.apache.iceberg.encryption.EncryptedKey;
import org.apache.iceberg.encryption.KeyManagementClient;
import org.apache.iceberg.encryption.NativeEncryptionInputFile;
import org.apache.iceberg.encryption.StandardEncryptionManager;

/** Iceberg's encryption manager, which compares the length of a file with its key metadata. */
final class CheckingManager extends StandardEncryptionManager {
  CheckingManager(
      List<EncryptedKey> keys, String keyId, int dataKeyLength, KeyManagementClient kms) {
    super(keys, keyId, dataKeyLength, kms);
  }

  @Override
  public NativeEncryptionInputFile decrypt(EncryptedInputFile file) {
    NativeEncryptionInputFile decrypted = super.decrypt(file);
    if (decrypted != file && file.keyMetadata() != null && file.keyMetadata().buffer() != null) {
      // The length of a manifest list is that of the stored file, of others the recorded one, which
      // the guard below compares with the stored file.
      Long length = decrypted.keyMetadata().fileLength();
      CatalogRules.refuseIf(
          length != null && length != file.encryptedInputFile().getLength(),
          "%s has %s bytes, and its key metadata says %s: it is truncated, or somebody changed it",
          decrypted.location(), file.encryptedInputFile().getLength(), length);
    }
    return decrypted;
  }
}
