package ags1.iceberg;

import static ags1.iceberg.CatalogRules.refuseIf;

import java.util.List;
import java.util.stream.Stream;
import org.apache.iceberg.encryption.EncryptedFiles;
import org.apache.iceberg.encryption.EncryptedInputFile;
import org.apache.iceberg.encryption.EncryptedKey;
import org.apache.iceberg.encryption.KeyManagementClient;
import org.apache.iceberg.encryption.NativeEncryptionInputFile;
import org.apache.iceberg.encryption.NativeEncryptionKeyMetadata;
import org.apache.iceberg.encryption.NativeEncryptionOutputFile;
import org.apache.iceberg.encryption.StandardEncryptionManager;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;

/**
 * Iceberg's encryption manager, which compares the length of a file with its key metadata.
 *
 * <p>Threads share it, and Iceberg's map of keys is not for several threads. So a manager that is in
 * use gets no new keys. When a key is needed for a manifest list, {@link EncryptedOperations#make}
 * replaces the manager by one that has it.
 */
class CheckingManager extends StandardEncryptionManager {
  private static final boolean HAS_REGISTER =
      Stream.of(StandardEncryptionManager.class.getMethods())
          .anyMatch(method -> method.getName().equals("registerKeyMetadata"));

  // Both are null in the processes of executors.
  final transient EncryptedOperations live;
  private final transient WrittenFiles checked;

  private CheckingManager(Of of) {
    super(of.keys(), of.keyId(), of.dataKeyLength(), of.kms());
    this.live = of.live();
    this.checked = of.checked();
  }

  /**
   * What managers are made of. Files that are written with a manager of {@code live} operations are
   * known there. {@code checked} are files that are read from memory; null if none are.
   */
  record Of(
      List<EncryptedKey> keys,
      String keyId,
      int dataKeyLength,
      KeyManagementClient kms,
      EncryptedOperations live,
      WrittenFiles checked) {
    CheckingManager manager() { return HAS_REGISTER ? new Of12(this) : new Of11(this); }
  }

  @Override
  public NativeEncryptionOutputFile encrypt(OutputFile file) {
    NativeEncryptionOutputFile encrypted = super.encrypt(file);
    return live == null ? encrypted : live.written().known(encrypted);
  }

  @Override
  public NativeEncryptionInputFile decrypt(EncryptedInputFile file) {
    if (file instanceof NativeEncryptionInputFile || !hasKey(file)) {
      return super.decrypt(file);
    }
    InputFile stored = GuardedFileIO.withKey(file.encryptedInputFile());
    NativeEncryptionInputFile decrypted =
        super.decrypt(EncryptedFiles.encryptedInput(stored, file.keyMetadata()));
    // The length of a manifest list is that of the stored file, of others the recorded one, which
    // the guard below compares with the stored file.
    Long length = decrypted.keyMetadata().fileLength();
    refuseIf(
        length != null && length != stored.getLength(),
        "%s has %s bytes, and its key metadata says %s: it is truncated, or somebody changed it",
        decrypted.location(), stored.getLength(), length);
    return checked == null ? decrypted : checked.known(decrypted);
  }

  private static boolean hasKey(EncryptedInputFile file) {
    return file.keyMetadata() != null && file.keyMetadata().buffer() != null;
  }

  /** In Iceberg 1.12, the writer of a manifest list calls a method that 1.11 does not have. */
  private static final class Of12 extends CheckingManager {
    Of12(Of of) { super(of); }

    @Override
    public FileEncryptionKeys registerKeyMetadata(NativeEncryptionKeyMetadata listKey) {
      return live == null ? register(listKey) : live.make(made -> ((Of12) made).register(listKey));
    }

    private FileEncryptionKeys register(NativeEncryptionKeyMetadata listKey) {
      return super.registerKeyMetadata(listKey);
    }
  }

  @SuppressWarnings("deprecation") // in 1.12
  private static final class Of11 extends CheckingManager {
    Of11(Of of) { super(of); }

    @Override
    public String addManifestListKeyMetadata(NativeEncryptionKeyMetadata listKey) {
      return live == null ? add(listKey) : live.make(made -> ((Of11) made).add(listKey));
    }

    private String add(NativeEncryptionKeyMetadata listKey) {
      return super.addManifestListKeyMetadata(listKey);
    }
  }
}
