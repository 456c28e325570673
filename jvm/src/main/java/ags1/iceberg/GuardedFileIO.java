package ags1.iceberg;

import static ags1.iceberg.CatalogRules.refuseIf;
import static java.nio.charset.StandardCharsets.ISO_8859_1;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Map;
import org.apache.iceberg.exceptions.ValidationException;
import org.apache.iceberg.io.DelegatingInputStream;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.FileInfo;
import org.apache.iceberg.io.IOUtil;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.io.SeekableInputStream;
import org.apache.iceberg.io.SupportsPrefixOperations;

/**
 * The files of an encrypted table as they are stored, below Iceberg's {@code EncryptingFileIO}.
 *
 * <p>Where key metadata is missing, Iceberg reads and writes a file unencrypted. Here the first
 * bytes decide. A file must be an AES-GCM stream ({@code AGS1}) or encrypted Parquet ({@code
 * PARE}), or a metadata.json by its name too. The format allows unencrypted data files:
 * those in Parquet are read, unless the rules forbid it.
 */
class GuardedFileIO implements FileIO {
  private static final int FIRST = 4;

  private final FileIO inner;
  private final boolean readsPlainParquet;

  static FileIO around(FileIO io, boolean requireEncrypted) {
    return io instanceof SupportsPrefixOperations prefixes
        ? new WithPrefixes(prefixes, !requireEncrypted)
        : new GuardedFileIO(io, !requireEncrypted);
  }

  private GuardedFileIO(FileIO inner, boolean readsPlainParquet) {
    this.inner = inner;
    this.readsPlainParquet = readsPlainParquet;
  }

  @Override
  public InputFile newInputFile(String path) {
    return new GuardedInput(inner.newInputFile(path), readsPlainParquet);
  }

  @Override
  public InputFile newInputFile(String path, long length) {
    return new GuardedInput(inner.newInputFile(path, length), readsPlainParquet);
  }

  @Override
  public OutputFile newOutputFile(String path) {
    return new GuardedOutput(inner.newOutputFile(path), inner);
  }

  @Override public void deleteFile(String path) { inner.deleteFile(path); }
  @Override public Map<String, String> properties() { return inner.properties(); }
  @Override public void close() { inner.close(); }

  private static final class WithPrefixes extends GuardedFileIO
      implements SupportsPrefixOperations {
    private final SupportsPrefixOperations prefixes;

    private WithPrefixes(SupportsPrefixOperations inner, boolean readsPlainParquet) {
      super(inner, readsPlainParquet);
      this.prefixes = inner;
    }

    @Override public Iterable<FileInfo> listPrefix(String path) { return prefixes.listPrefix(path); }
    @Override public void deletePrefix(String path) { prefixes.deletePrefix(path); }
  }

  private static boolean isEncrypted(String first) { return first.matches("AGS1|PARE"); }

  private record GuardedInput(InputFile file, boolean readsPlainParquet) implements InputFile {
    @Override public long getLength() { return file.getLength(); }
    @Override public String location() { return file.location(); }
    @Override public boolean exists() { return file.exists(); }

    @Override
    public SeekableInputStream newStream() {
      SeekableInputStream stream = file.newStream();
      try {
        byte[] bytes = new byte[FIRST];
        int size = IOUtil.readRemaining(stream, bytes, 0, FIRST);
        String first = new String(bytes, 0, size, ISO_8859_1);
        refuseIf(
            !isEncrypted(first)
                && !(location().contains(".metadata.json") && first.matches("(?s)(\\{|\u001f\u008b).*"))
                && !(readsPlainParquet && first.equals("PAR1")),
            "%s belongs to an encrypted table, and is not encrypted or is truncated: somebody "
                + "replaced it, or another program wrote it unencrypted", location());
        stream.seek(0);
        // Of Hadoop's stream, Parquet would keep the inner one alone: then Iceberg's finalizer
        // closes it, perhaps while it is read.
        return first.equals("AGS1") || stream instanceof DelegatingInputStream
            ? new WholeStream(stream, getLength(), location())
            : stream;
      } catch (IOException | RuntimeException error) {
        try (stream) {
          throw error;
        } catch (IOException failure) {
          throw new UncheckedIOException(failure);
        }
      }
    }
  }

  /** Reports the early end of a file, which Avro would take for the end of the rows. */
  private static final class WholeStream extends SeekableInputStream {
    private final SeekableInputStream inner;
    private final long length;
    private final String location;

    private WholeStream(SeekableInputStream inner, long length, String location) {
      this.inner = inner;
      this.length = length;
      this.location = location;
    }

    @Override public long getPos() throws IOException { return inner.getPos(); }
    @Override public void seek(long position) throws IOException { inner.seek(position); }
    @Override public void close() throws IOException { inner.close(); }
    @Override public int read() throws IOException { return checked(inner.read()); }

    @Override
    public int read(byte[] bytes, int offset, int size) throws IOException {
      return checked(inner.read(bytes, offset, size));
    }

    private int checked(int result) throws IOException {
      refuseIf(
          result < 0 && inner.getPos() < length,
          "%s is truncated: it has %s of %s bytes", location, inner.getPos(), length);
      return result;
    }
  }

  private record GuardedOutput(OutputFile file, FileIO io) implements OutputFile {
    @Override public String location() { return file.location(); }
    @Override public InputFile toInputFile() { return new GuardedInput(file.toInputFile(), false); }
    @Override public PositionOutputStream create() { return new GuardedStream(this, file.create()); }

    @Override
    public PositionOutputStream createOrOverwrite() {
      return new GuardedStream(this, file.createOrOverwrite());
    }
  }

  /** Keeps the first bytes until they are known to be those of an encrypted file. */
  private static final class GuardedStream extends PositionOutputStream {
    private final GuardedOutput output;
    private final PositionOutputStream inner;
    private final byte[] first = new byte[FIRST];
    private int size = 0;

    private GuardedStream(GuardedOutput output, PositionOutputStream inner) {
      this.output = output;
      this.inner = inner;
    }

    @Override public long getPos() throws IOException { return size < FIRST ? size : inner.getPos(); }
    @Override public long storedLength() throws IOException { return inner.storedLength(); }
    @Override public void flush() throws IOException { inner.flush(); }
    @Override public void write(int value) throws IOException { write(new byte[] {(byte) value}); }

    @Override
    public void write(byte[] bytes, int offset, int count) throws IOException {
      int taken = Math.min(FIRST - size, count);
      System.arraycopy(bytes, offset, first, size, taken);
      size += taken;
      if (taken > 0 && size == FIRST) {
        check();
        inner.write(first);
      }
      inner.write(bytes, offset + taken, count - taken);
    }

    @Override
    public void close() throws IOException {
      inner.close();
      check();
    }

    private void check() throws IOException {
      if (!isEncrypted(new String(first, 0, size, ISO_8859_1))) {
        inner.close();
        output.io().deleteFile(output.location());
        throw new ValidationException(
            "%s would be written unencrypted into an encrypted table: Iceberg cannot encrypt files "
                + "of this kind (statistics, and the manifests of add_files)", output.location());
      }
    }
  }
}
