package ags1.iceberg;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.iceberg.exceptions.ValidationException;
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
 * Where key metadata is missing, Iceberg reads and writes a file unencrypted. Here its first bytes
 * decide: a file that is read or written must be an AES-GCM stream ({@code AGS1}) or an encrypted
 * Parquet file ({@code PARE}). metadata.json is JSON, perhaps in gzip, which no reader takes for
 * another file. The format allows unencrypted data files; if the rules do, those in Parquet are
 * read.
 */
class GuardedFileIO implements FileIO {
  private static final int FIRST = 4;

  private final FileIO inner;
  private final boolean readsPlainParquet;

  static FileIO around(FileIO io, boolean requireEncrypted) {
    return io instanceof SupportsPrefixOperations
        ? new WithPrefixes((SupportsPrefixOperations) io, !requireEncrypted)
        : new GuardedFileIO(io, !requireEncrypted);
  }

  private GuardedFileIO(FileIO inner, boolean readsPlainParquet) {
    this.inner = inner;
    this.readsPlainParquet = readsPlainParquet;
  }

  @Override
  public InputFile newInputFile(String path) {
    return new GuardedInput(inner.newInputFile(path));
  }

  @Override
  public InputFile newInputFile(String path, long length) {
    return new GuardedInput(inner.newInputFile(path, length));
  }

  @Override
  public OutputFile newOutputFile(String path) {
    return new GuardedOutput(inner.newOutputFile(path));
  }

  @Override
  public void deleteFile(String path) {
    inner.deleteFile(path);
  }

  @Override
  public Map<String, String> properties() {
    return inner.properties();
  }

  @Override
  public void close() {
    inner.close();
  }

  private boolean isReadable(String first) {
    return isEncrypted(first)
        || first.startsWith("{")
        || first.startsWith("\u001f\u008b")
        || (readsPlainParquet && first.equals("PAR1"));
  }

  private static boolean isEncrypted(String first) {
    return first.equals("AGS1") || first.equals("PARE");
  }

  private final class GuardedInput implements InputFile {
    private final InputFile file;

    private GuardedInput(InputFile file) {
      this.file = file;
    }

    @Override
    public long getLength() {
      return file.getLength();
    }

    @Override
    public SeekableInputStream newStream() {
      SeekableInputStream stream = file.newStream();
      try {
        byte[] bytes = new byte[FIRST];
        int size = IOUtil.readRemaining(stream, bytes, 0, FIRST);
        if (!isReadable(new String(bytes, 0, size, StandardCharsets.ISO_8859_1))) {
          throw new ValidationException(
              "%s belongs to an encrypted table, and is not encrypted or is truncated: somebody "
                  + "replaced it, or another program wrote it unencrypted",
              location());
        }
        stream.seek(0);
        return stream;
      } catch (IOException | RuntimeException error) {
        try (stream) {
          throw error;
        } catch (IOException failure) {
          throw new UncheckedIOException(failure);
        }
      }
    }

    @Override
    public String location() {
      return file.location();
    }

    @Override
    public boolean exists() {
      return file.exists();
    }
  }

  private final class GuardedOutput implements OutputFile {
    private final OutputFile file;

    private GuardedOutput(OutputFile file) {
      this.file = file;
    }

    @Override
    public PositionOutputStream create() {
      return new GuardedStream(file.create());
    }

    @Override
    public PositionOutputStream createOrOverwrite() {
      return new GuardedStream(file.createOrOverwrite());
    }

    @Override
    public String location() {
      return file.location();
    }

    @Override
    public InputFile toInputFile() {
      return new GuardedInput(file.toInputFile());
    }

    /** Keeps the first bytes until they are known to be those of an encrypted file. */
    private final class GuardedStream extends PositionOutputStream {
      private final PositionOutputStream stream;
      private final byte[] first = new byte[FIRST];
      private int size = 0;

      private GuardedStream(PositionOutputStream stream) {
        this.stream = stream;
      }

      @Override
      public long getPos() throws IOException {
        return size < FIRST ? size : stream.getPos();
      }

      @Override
      public long storedLength() throws IOException {
        return stream.storedLength();
      }

      @Override
      public void write(int value) throws IOException {
        write(new byte[] {(byte) value}, 0, 1);
      }

      @Override
      public void write(byte[] bytes, int offset, int count) throws IOException {
        int taken = Math.min(FIRST - size, count);
        if (taken > 0) {
          System.arraycopy(bytes, offset, first, size, taken);
          size += taken;
          if (size == FIRST) {
            check();
            stream.write(first);
          }
        }
        stream.write(bytes, offset + taken, count - taken);
      }

      @Override
      public void flush() throws IOException {
        stream.flush();
      }

      @Override
      public void close() throws IOException {
        stream.close();
        try {
          check();
        } catch (ValidationException refused) {
          inner.deleteFile(location());
          throw refused;
        }
      }

      private void check() {
        if (!isEncrypted(new String(first, 0, size, StandardCharsets.ISO_8859_1))) {
          throw new ValidationException(
              "%s would be written unencrypted into an encrypted table: Iceberg cannot encrypt "
                  + "files of this kind (statistics, and the manifests of add_files)",
              location());
        }
      }
    }
  }

  private static final class WithPrefixes extends GuardedFileIO
      implements SupportsPrefixOperations {
    private final SupportsPrefixOperations prefixes;

    private WithPrefixes(SupportsPrefixOperations inner, boolean readsPlainParquet) {
      super(inner, readsPlainParquet);
      this.prefixes = inner;
    }

    @Override
    public Iterable<FileInfo> listPrefix(String prefix) {
      return prefixes.listPrefix(prefix);
    }

    @Override
    public void deletePrefix(String prefix) {
      prefixes.deletePrefix(prefix);
    }
  }
}
