package ags1.iceberg;

import ags1.iceberg.kms.KmsClients;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.encryption.EncryptedFiles;
import org.apache.iceberg.encryption.EncryptionKeyMetadata;
import org.apache.iceberg.encryption.NativeEncryptionOutputFile;
import org.apache.iceberg.encryption.StandardEncryptionManager;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.inmemory.InMemoryFileIO;
import org.apache.iceberg.inmemory.InMemoryInputFile;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.IOUtil;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.io.RangeReadable;
import org.apache.iceberg.io.SeekableInputStream;
import org.apache.iceberg.io.SupportsBulkOperations;
import org.apache.iceberg.io.SupportsPrefixOperations;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;

/** The files that our plug-in reads and writes in an encrypted table. */
final class Guard {
  private Guard() {}

  static Object read(JsonNode arguments) throws IOException {
    String path = arguments.get("path").asText();
    try (SeekableInputStream stream = io(arguments).newInputFile(path).newStream()) {
      return HexFormat.of().formatHex(stream.readAllBytes());
    }
  }

  /**
   * Reads a file that is replaced after it was opened, as on an object store: from its beginning or
   * its end, by the stream or by ranges.
   */
  static Object readReplaced(JsonNode arguments) throws IOException {
    byte[] after = HexFormat.of().parseHex(arguments.get("after").asText());
    boolean ranges = arguments.get("ranges").asBoolean();
    Stored stored = new Stored(HexFormat.of().parseHex(arguments.get("before").asText()));
    InputFile file = new InMemoryInputFile(after) {
      @Override public SeekableInputStream newStream() {
        return ranges ? new StoredRanges(stored) : new StoredStream(stored);
      }
    };
    FileIO io = new HadoopFileIO(new Configuration()) {
      @Override public InputFile newInputFile(String path) { return file; }
    };
    boolean required = arguments.get("required").asBoolean();
    byte[] bytes = new byte[arguments.get("size").asInt()];
    boolean atEnd = arguments.get("at-end").asBoolean();
    long position = atEnd ? after.length - bytes.length : 0;
    try (SeekableInputStream stream =
        GuardedFileIO.around(io, required, null).newInputFile("memory").newStream()) {
      stored.bytes = after;
      if (!ranges) {
        stream.seek(position);
        IOUtil.readFully(stream, bytes, 0, bytes.length);
      } else if (atEnd) {
        ((RangeReadable) stream).readTail(bytes);
      } else {
        ((RangeReadable) stream).readFully(position, bytes);
      }
    }
    return HexFormat.of().formatHex(bytes);
  }

  private static final class Stored {
    private byte[] bytes;

    private Stored(byte[] bytes) { this.bytes = bytes; }
  }

  private static class StoredStream extends SeekableInputStream {
    private final Stored stored;
    private long position = 0;

    private StoredStream(Stored stored) { this.stored = stored; }

    @Override public long getPos() { return position; }
    @Override public void seek(long to) { position = to; }

    @Override
    public int read() {
      return position < stored.bytes.length ? stored.bytes[(int) position++] & 0xff : -1;
    }
  }

  private static final class StoredRanges extends StoredStream implements RangeReadable {
    private final Stored stored;

    private StoredRanges(Stored stored) {
      super(stored);
      this.stored = stored;
    }

    @Override
    public void readFully(long position, byte[] into, int offset, int size) {
      System.arraycopy(stored.bytes, (int) position, into, offset, size);
    }

    @Override
    public int readTail(byte[] into, int offset, int size) {
      readFully(stored.bytes.length - size, into, offset, size);
      return size;
    }
  }

  /** Says whether files are listed, and deleted at once, through the guard over a storage that can. */
  static Object abilities(JsonNode arguments) {
    FileIO plain = new InMemoryFileIO();
    List<Boolean> able = new ArrayList<>();
    for (FileIO io : List.of(new HadoopFileIO(new Configuration()), plain)) {
      FileIO guarded = GuardedFileIO.around(io, false, null);
      able.add(guarded instanceof SupportsPrefixOperations);
      able.add(guarded instanceof SupportsBulkOperations);
    }
    List<String> paths = new ArrayList<>();
    arguments.get("paths").forEach(path -> paths.add(path.asText()));
    FileIO guarded = GuardedFileIO.around(new HadoopFileIO(new Configuration()), false, null);
    ((SupportsBulkOperations) guarded).deleteFiles(paths);
    return able;
  }

  /** Writes pieces of a size. */
  static Object write(JsonNode arguments) throws IOException {
    byte[] bytes = HexFormat.of().parseHex(arguments.get("bytes").asText());
    int size = arguments.get("size").asInt();
    FileIO io = io(arguments);
    try (PositionOutputStream stream = io.newOutputFile(arguments.get("path").asText()).create()) {
      for (int start = 0; start < bytes.length; start += size) {
        stream.write(bytes, start, Math.min(size, bytes.length - start));
      }
      return stream.getPos();
    }
  }

  /**
   * Writes an encrypted file of a size, which is then overwritten in the storage. Says whether the plug-in
   * still knows its content: by its own key, by another one, and once it has forgotten it.
   */
  static Object known(JsonNode arguments) throws IOException {
    byte[] content = new byte[arguments.get("size").asInt()];
    Arrays.fill(content, (byte) 'x');
    Map<String, String> kms =
        Map.of("encryption.kms-type", "memory", "encryption.kms.key.a", "00".repeat(16));
    StandardEncryptionManager manager =
        new StandardEncryptionManager(List.of(), "a", 16, KmsClients.of(kms));
    InMemoryFileIO io = new InMemoryFileIO(); // which has the files of all tests
    String path = "known-" + content.length;
    WrittenFiles files = new WrittenFiles();
    NativeEncryptionOutputFile file = files.known(manager.encrypt(io.newOutputFile(path)));
    try (PositionOutputStream stream = file.encryptingOutputFile().create()) {
      stream.write(content);
    }
    EncryptionKeyMetadata other = manager.encrypt(io.newOutputFile("other")).keyMetadata();
    io.deleteFile(path);
    io.addFile(path, new byte[100]);
    List<Boolean> known = new ArrayList<>();
    for (EncryptionKeyMetadata key : List.of(file.keyMetadata(), other, file.keyMetadata())) {
      if (known.size() == 2) {
        files.forget();
      }
      InputFile found =
          files.known(manager.decrypt(EncryptedFiles.encryptedInput(io.newInputFile(path), key)));
      try (SeekableInputStream stream = found.newStream()) {
        known.add(Arrays.equals(stream.readAllBytes(), content));
      } catch (RuntimeException notEncrypted) {
        known.add(false);
      }
    }
    return known;
  }

  private static FileIO io(JsonNode arguments) {
    boolean required = arguments.has("required") && arguments.get("required").asBoolean();
    String why = arguments.path("why").asText(null);
    return GuardedFileIO.around(new HadoopFileIO(new Configuration()), required, why);
  }
}
