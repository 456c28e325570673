package ags1.iceberg;

import java.io.IOException;
import java.util.HexFormat;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.inmemory.InMemoryInputFile;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.IOUtil;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.io.RangeReadable;
import org.apache.iceberg.io.SeekableInputStream;
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
    byte[] before = HexFormat.of().parseHex(arguments.get("before").asText());
    byte[] after = HexFormat.of().parseHex(arguments.get("after").asText());
    boolean ranges = arguments.get("ranges").asBoolean();
    InputFile file = new InMemoryInputFile(after) {
      @Override public SeekableInputStream newStream() {
        SeekableInputStream first = new InMemoryInputFile(before).newStream();
        SeekableInputStream then = super.newStream();
        return ranges ? new ReplacedRanges(first, then, after) : new Replaced(first, then);
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
        GuardedFileIO.around(io, required).newInputFile("memory").newStream()) {
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

  private static class Replaced extends SeekableInputStream {
    private SeekableInputStream now;
    private final SeekableInputStream then;

    private Replaced(SeekableInputStream first, SeekableInputStream then) {
      this.now = first;
      this.then = then;
    }

    @Override public long getPos() throws IOException { return now.getPos(); }
    @Override public int read() throws IOException { return now.read(); }

    @Override
    public void seek(long position) throws IOException {
      now = then;
      now.seek(position);
    }
  }

  private static final class ReplacedRanges extends Replaced implements RangeReadable {
    private final byte[] bytes;

    private ReplacedRanges(SeekableInputStream first, SeekableInputStream then, byte[] bytes) {
      super(first, then);
      this.bytes = bytes;
    }

    @Override
    public void readFully(long position, byte[] into, int offset, int size) {
      System.arraycopy(bytes, (int) position, into, offset, size);
    }

    @Override
    public int readTail(byte[] into, int offset, int size) {
      readFully(bytes.length - size, into, offset, size);
      return size;
    }
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

  private static FileIO io(JsonNode arguments) {
    boolean required = arguments.has("required") && arguments.get("required").asBoolean();
    return GuardedFileIO.around(new HadoopFileIO(new Configuration()), required);
  }
}
