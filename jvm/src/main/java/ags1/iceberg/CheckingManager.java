package ags1.iceberg;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.List;
import org.apache.iceberg.encryption.EncryptedFiles;
import org.apache.iceberg.encryption.EncryptedInputFile;
import org.apache.iceberg.encryption.EncryptedKey;
import org.apache.iceberg.encryption.KeyManagementClient;
import org.apache.iceberg.encryption.NativeEncryptionInputFile;
import org.apache.iceberg.encryption.StandardEncryptionManager;
import org.apache.iceberg.exceptions.ValidationException;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.SeekableInputStream;

/**
 * Iceberg's encryption manager, which compares the length of each file with the length in its key
 * metadata, and reports the early end of a file as truncation. Avro takes such an end for the end
 * of the rows.
 */
final class CheckingManager extends StandardEncryptionManager {
  CheckingManager(
      List<EncryptedKey> keys, String keyId, int dataKeyLength, KeyManagementClient kms) {
    super(keys, keyId, dataKeyLength, kms);
  }

  @Override
  public NativeEncryptionInputFile decrypt(EncryptedInputFile encrypted) {
    if (encrypted instanceof NativeEncryptionInputFile
        || encrypted.keyMetadata() == null
        || encrypted.keyMetadata().buffer() == null) {
      return super.decrypt(encrypted);
    }
    InputFile whole = new WholeFile(encrypted.encryptedInputFile(), super.decrypt(encrypted));
    return super.decrypt(EncryptedFiles.encryptedInput(whole, encrypted.keyMetadata()));
  }

  private record WholeFile(InputFile inner, NativeEncryptionInputFile parsed)
      implements InputFile {
    @Override
    public long getLength() {
      return inner.getLength();
    }

    @Override
    public SeekableInputStream newStream() {
      Long length = parsed.keyMetadata().fileLength();
      if (length != null && length != inner.getLength()) {
        throw new ValidationException(
            "%s has %s bytes, and its key metadata says %s: it is truncated, or somebody changed it",
            location(), inner.getLength(), length);
      }
      return new WholeStream(inner.newStream(), inner.getLength(), location());
    }

    @Override
    public String location() {
      return inner.location();
    }

    @Override
    public boolean exists() {
      return inner.exists();
    }
  }

  private static final class WholeStream extends SeekableInputStream {
    private final SeekableInputStream inner;
    private final long length;
    private final String location;

    private WholeStream(SeekableInputStream inner, long length, String location) {
      this.inner = inner;
      this.length = length;
      this.location = location;
    }

    @Override
    public long getPos() throws IOException {
      return inner.getPos();
    }

    @Override
    public void seek(long position) throws IOException {
      inner.seek(position);
    }

    @Override
    public int read() throws IOException {
      return checked(inner.read());
    }

    @Override
    public int read(byte[] bytes, int offset, int size) throws IOException {
      return checked(inner.read(bytes, offset, size));
    }

    @Override
    public void close() throws IOException {
      inner.close();
    }

    // Unchecked and no EOFException, which Avro would take for the end of the rows.
    private int checked(int result) throws IOException {
      if (result < 0 && inner.getPos() < length) {
        throw new UncheckedIOException(
            new IOException(
                String.format(
                    "%s is truncated: it has %s of %s bytes", location, inner.getPos(), length)));
      }
      return result;
    }
  }
}
