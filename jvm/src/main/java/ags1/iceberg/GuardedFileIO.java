package ags1.iceberg;

import static ags1.iceberg.CatalogRules.refuseIf;
import static java.nio.charset.StandardCharsets.ISO_8859_1;

import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.function.IntFunction;
import org.apache.iceberg.exceptions.ValidationException;
import org.apache.iceberg.io.DelegateFileIO;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.FileInfo;
import org.apache.iceberg.io.FileRange;
import org.apache.iceberg.io.IOUtil;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.io.RangeReadable;
import org.apache.iceberg.io.SeekableInputStream;
import org.apache.iceberg.io.SupportsPrefixOperations;

/**
 * The files of an encrypted table as they are stored, below Iceberg's {@code EncryptingFileIO}.
 *
 * <p>Where key metadata is missing, Iceberg reads and writes a file unencrypted. Here the first
 * bytes decide: a file that would be unencrypted is deleted again, and refused. A file must be an AES-GCM stream ({@code AGS1}) or encrypted Parquet ({@code
 * PARE}), or a metadata.json by its name too. The format allows unencrypted data files without a key:
 * those in Parquet are read, unless the rules forbid it. The end of encrypted Parquet is checked by
 * {@link EncryptedParquet}. A reader of Parquet does not look at the first bytes, and begins at the
 * end. So the first read of any other file has to be at its beginning.
 *
 * <p>It never changes, so threads and the tasks of executors share it. A stream belongs to one
 * thread, as Iceberg's do.
 */
class GuardedFileIO implements FileIO {
  private static final int FIRST = 4;

  private final FileIO inner;
  private final boolean readsPlainParquet;
  private final String whyUnwritable;

  /**
   * Returns the guard, which can do what Iceberg's encrypting FileIO above it passes on. {@code
   * whyUnwritable} says why nothing may be written; null if that is not so.
   */
  static FileIO around(FileIO io, boolean requireEncrypted, String whyUnwritable) {
    return io instanceof DelegateFileIO all
        ? new WithBulkDeletes(all, !requireEncrypted, whyUnwritable)
        : io instanceof SupportsPrefixOperations prefixes
            ? new WithPrefixes(prefixes, !requireEncrypted, whyUnwritable)
            : new GuardedFileIO(io, !requireEncrypted, whyUnwritable);
  }

  private GuardedFileIO(FileIO inner, boolean readsPlainParquet, String whyUnwritable) {
    this.inner = inner;
    this.readsPlainParquet = readsPlainParquet;
    this.whyUnwritable = whyUnwritable;
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
    refuseIf(whyUnwritable != null, "%s is not written: %s", path, whyUnwritable);
    return new GuardedOutput(inner.newOutputFile(path), inner);
  }

  @Override public void deleteFile(String path) { inner.deleteFile(path); }
  @Override public Map<String, String> properties() { return inner.properties(); }
  @Override public void close() { inner.close(); }

  private static class WithPrefixes extends GuardedFileIO implements SupportsPrefixOperations {
    private final SupportsPrefixOperations prefixes;

    private WithPrefixes(
        SupportsPrefixOperations inner, boolean readsPlainParquet, String whyUnwritable) {
      super(inner, readsPlainParquet, whyUnwritable);
      this.prefixes = inner;
    }

    @Override public Iterable<FileInfo> listPrefix(String path) { return prefixes.listPrefix(path); }
    @Override public void deletePrefix(String path) { prefixes.deletePrefix(path); }
  }

  private static final class WithBulkDeletes extends WithPrefixes implements DelegateFileIO {
    private final DelegateFileIO all;

    private WithBulkDeletes(
        DelegateFileIO inner, boolean readsPlainParquet, String whyUnwritable) {
      super(inner, readsPlainParquet, whyUnwritable);
      this.all = inner;
    }

    @Override public void deleteFiles(Iterable<String> paths) { all.deleteFiles(paths); }
  }

  /** Opens a file for reading. To open a pipe on this machine could take for ever. */
  static SeekableInputStream opened(InputFile file) {
    String path = file.location().replaceFirst("^file:/+", "/");
    File local = new File(path);
    refuseIf(
        path.startsWith("/") && !local.isFile() && local.exists(),
        "%s is not a regular file: somebody replaced it", file.location());
    return file.newStream();
  }

  private static boolean isEncrypted(String first) { return first.matches("AGS1|PARE"); }

  /** A file, which is unencrypted Parquet only if {@code readsPlainParquet} is true. */
  private record GuardedInput(InputFile file, boolean readsPlainParquet) implements InputFile {
    @Override public long getLength() { return file.getLength(); }
    @Override public String location() { return file.location(); }
    @Override public boolean exists() { return file.exists(); }

    @Override
    public SeekableInputStream newStream() {
      SeekableInputStream stream = opened(file);
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
        long length = getLength();
        List<Piece> checked = new ArrayList<>(List.of(new Piece(0, Arrays.copyOf(bytes, size))));
        if (first.equals("PARE")) {
          checked.addAll(EncryptedParquet.checkedEnd(stream, length, location()));
        }
        return stream instanceof RangeReadable ranges
            ? new CheckedRanges(stream, ranges, length, checked, location())
            : new CheckedStream(stream, length, checked, location());
      } catch (IOException | RuntimeException error) {
        try (stream) {
          throw error;
        } catch (IOException failure) {
          throw new UncheckedIOException(failure);
        }
      }
    }
  }

  /** Returns a file that has a key as one that is not unencrypted Parquet either. */
  static InputFile withKey(InputFile file) {
    return file instanceof GuardedInput guarded ? new GuardedInput(guarded.file(), false) : file;
  }

  /** Bytes of a file, from an offset on. */
  record Piece(long offset, byte[] bytes) {}

  /**
   * Gives the pieces that were checked from memory: on an object store, a later read is another
   * request, and somebody may have replaced the file meanwhile. Reports the early end of a file, which
   * Avro would take for the end of the rows.
   *
   * <p>It is no {@code DelegatingInputStream}: of Hadoop's stream, Parquet would keep the inner one
   * alone. Then Iceberg's finalizer closes it, perhaps while it is read.
   */
  private static class CheckedStream extends SeekableInputStream {
    private final SeekableInputStream inner;
    private final long length;
    private final List<Piece> checked; // in the order of their offsets
    private final String location;
    private boolean mustBeginAtHead;
    private long position = 0;

    private CheckedStream(
        SeekableInputStream inner, long length, List<Piece> checked, String location) {
      this.inner = inner;
      this.length = length;
      this.checked = checked;
      this.location = location;
      this.mustBeginAtHead = !new String(checked.get(0).bytes(), ISO_8859_1).startsWith("PAR");
    }

    @Override public long getPos() { return position; }
    @Override public void seek(long to) { position = to; }
    @Override public void close() throws IOException { inner.close(); }

    @Override
    public int read() throws IOException {
      byte[] single = new byte[1];
      return read(single, 0, 1) < 0 ? -1 : single[0] & 0xff;
    }

    @Override
    public int read(byte[] bytes, int offset, int size) throws IOException {
      int count = checked(position, bytes, offset, size);
      if (count == 0 && size > 0) {
        if (inner.getPos() != position) {
          inner.seek(position);
        }
        count = inner.read(bytes, offset, unchecked(position, size));
        refuseIf(
            count < 0 && position < length,
            "%s is truncated: it has %s of %s bytes", location, position, length);
      }
      position += Math.max(count, 0);
      return count;
    }

    /** Copies what was checked at a position, and returns how much that was. */
    final int checked(long at, byte[] bytes, int offset, int size) {
      refuseIf(
          mustBeginAtHead && at != 0,
          "%s is read from its end, as only Parquet is, and does not begin as Parquet does: somebody "
              + "replaced it", location);
      mustBeginAtHead = false;
      for (Piece piece : checked) {
        long from = at - piece.offset();
        if (from >= 0 && from < piece.bytes().length) {
          int count = Math.min(size, piece.bytes().length - (int) from);
          System.arraycopy(piece.bytes(), (int) from, bytes, offset, count);
          return count;
        }
      }
      return 0;
    }

    /** Returns how many of {@code size} bytes come before the next ones that were checked. */
    final int unchecked(long at, int size) {
      return checked.stream()
          .filter(piece -> piece.offset() > at)
          .mapToInt(piece -> (int) Math.min(size, piece.offset() - at))
          .min()
          .orElse(size);
    }

    final long length() { return length; }
  }

  /** Lets Parquet read several ranges at once. It reads the footer first, and not in that way. */
  private static final class CheckedRanges extends CheckedStream implements RangeReadable {
    private final RangeReadable ranges;

    private CheckedRanges(
        SeekableInputStream inner,
        RangeReadable ranges,
        long length,
        List<Piece> checked,
        String location) {
      super(inner, length, checked, location);
      this.ranges = ranges;
    }

    @Override
    public void readFully(long position, byte[] bytes, int offset, int size) throws IOException {
      for (int done = 0, count; done < size; done += count) {
        count = checked(position + done, bytes, offset + done, size - done);
        if (count == 0) {
          count = unchecked(position + done, size - done);
          ranges.readFully(position + done, bytes, offset + done, count);
        }
      }
    }

    @Override
    public int readTail(byte[] bytes, int offset, int size) throws IOException {
      int count = (int) Math.min(size, length());
      readFully(length() - count, bytes, offset, count);
      return count;
    }

    @Override
    public void readVectored(List<FileRange> wanted, IntFunction<ByteBuffer> allocate)
        throws IOException {
      ranges.readVectored(wanted, allocate);
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
