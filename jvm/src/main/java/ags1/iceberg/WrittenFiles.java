package ags1.iceberg;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.encryption.NativeEncryptionInputFile;
import org.apache.iceberg.encryption.NativeEncryptionKeyMetadata;
import org.apache.iceberg.encryption.NativeEncryptionOutputFile;
import org.apache.iceberg.inmemory.InMemoryInputFile;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.io.SeekableInputStream;

/**
 * The contents of small files that were encrypted here: manifests and their lists, which a commit
 * checks. From memory, that takes half the time.
 *
 * <p>A file is known by its location, its key and its AAD prefix, which are drawn for it. With
 * these, a reader gets the same content from the storage, or an error. Threads may share it.
 */
final class WrittenFiles {
  private static final int MAX_FILES = 64;
  private static final int MAX_SIZE = 64 << 10; // a larger file is read back

  private final Map<List<Object>, byte[]> contents =
      Collections.synchronizedMap(
          new LinkedHashMap<>() {
            @Override
            protected boolean removeEldestEntry(Map.Entry<List<Object>, byte[]> eldest) {
              return size() > MAX_FILES;
            }
          });

  /** Returns the file, whose content will be known once it is written. */
  NativeEncryptionOutputFile known(NativeEncryptionOutputFile file) { return new Output(file, this); }

  /** Returns the file, which is read from memory if its content is known. */
  NativeEncryptionInputFile known(NativeEncryptionInputFile file) {
    byte[] content = contents.get(id(file.location(), file.keyMetadata()));
    return content == null
        ? file
        : new Input(file, new InMemoryInputFile(file.location(), content));
  }

  void forget() { contents.clear(); }

  private static List<Object> id(String location, NativeEncryptionKeyMetadata key) {
    return Arrays.asList(location, key.encryptionKey(), key.aadPrefix());
  }

  private record Input(NativeEncryptionInputFile file, InputFile content)
      implements NativeEncryptionInputFile {
    @Override public NativeEncryptionKeyMetadata keyMetadata() { return file.keyMetadata(); }
    @Override public InputFile encryptedInputFile() { return file.encryptedInputFile(); }
    @Override public long getLength() { return content.getLength(); }
    @Override public SeekableInputStream newStream() { return content.newStream(); }
    @Override public String location() { return file.location(); }
    @Override public boolean exists() { return file.exists(); }
  }

  private record Output(NativeEncryptionOutputFile file, WrittenFiles written)
      implements NativeEncryptionOutputFile {
    @Override public NativeEncryptionKeyMetadata keyMetadata() { return file.keyMetadata(); }
    @Override public OutputFile plainOutputFile() { return file.plainOutputFile(); }
    @Override public OutputFile encryptingOutputFile() { return new Content(this); }
  }

  private record Content(Output output) implements OutputFile {
    private OutputFile file() { return output.file().encryptingOutputFile(); }

    @Override public String location() { return file().location(); }
    @Override public InputFile toInputFile() { return file().toInputFile(); }
    @Override public PositionOutputStream create() { return new Stream(output, file().create()); }

    @Override
    public PositionOutputStream createOrOverwrite() {
      return new Stream(output, file().createOrOverwrite());
    }
  }

  private static final class Stream extends PositionOutputStream {
    private final Output output;
    private final PositionOutputStream inner;
    private ByteArrayOutputStream content = new ByteArrayOutputStream(); // null if it is too much

    private Stream(Output output, PositionOutputStream inner) {
      this.output = output;
      this.inner = inner;
    }

    @Override public long getPos() throws IOException { return inner.getPos(); }
    @Override public long storedLength() throws IOException { return inner.storedLength(); }
    @Override public void flush() throws IOException { inner.flush(); }
    @Override public void write(int value) throws IOException { write(new byte[] {(byte) value}); }

    @Override
    public void write(byte[] bytes, int offset, int count) throws IOException {
      inner.write(bytes, offset, count);
      content = content == null || content.size() + count > MAX_SIZE ? null : content;
      if (content != null) {
        content.write(bytes, offset, count);
      }
    }

    @Override
    public void close() throws IOException {
      inner.close();
      if (content != null) {
        List<Object> id = id(output.location(), output.keyMetadata());
        output.written().contents.put(id, content.toByteArray());
      }
    }
  }
}
