package org.apache.iceberg.encryption;

import java.io.BufferedReader;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.io.SeekableInputStream;

/**
 * Iceberg's own AGS1 streams over kept memory, driven by lines on stdin.
 *
 * <p>The protocol is that of {@code bench/peers/process.py}. The package is Iceberg's because the
 * streams' constructors are visible only there.
 */
public final class Ags1Bench {
  private static final int PIECE = 1 << 20;

  private byte[] key;
  private byte[] aadPrefix;
  private byte[] plaintext;
  private byte[] sealed;
  private byte[] opened;
  private int sealedSize;

  public static void main(String[] args) throws IOException {
    Ags1Bench bench = new Ags1Bench();
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      String answer;
      try {
        answer = bench.obey(line.trim().split(" ", 3));
      } catch (IOException | RuntimeException failure) {
        answer = "error " + failure;
      }
      System.out.println(answer);
      System.out.flush();
    }
  }

  private String obey(String[] words) throws IOException {
    switch (words[0]) {
      case "key":
        key = hex(words[1]);
        aadPrefix = hex(words[2]);
        return "ok";
      case "load":
        plaintext = Files.readAllBytes(Path.of(words[1]));
        int blocks = plaintext.length / PIECE + 1;
        sealed = new byte[plaintext.length + 8 + 28 * blocks];
        opened = new byte[plaintext.length];
        return "ok";
      case "seal":
        return Long.toString(seal());
      case "open":
        return Long.toString(open());
      case "check":
        return Arrays.equals(plaintext, opened) ? "ok" : "error the plaintext did not come back";
      case "dump":
        Files.write(Path.of(words[1]), Arrays.copyOf(sealed, sealedSize));
        return "ok";
      case "take":
        sealed = Files.readAllBytes(Path.of(words[1]));
        sealedSize = sealed.length;
        return "ok";
      default:
        return "error unknown command";
    }
  }

  private long seal() throws IOException {
    long begin = System.nanoTime();
    Sink sink = new Sink(sealed);
    try (AesGcmOutputStream stream = new AesGcmOutputStream(sink, key, aadPrefix)) {
      for (int at = 0; at < plaintext.length; at += PIECE) {
        stream.write(plaintext, at, Math.min(PIECE, plaintext.length - at));
      }
    }
    long elapsed = System.nanoTime() - begin;
    sealedSize = sink.position;
    return elapsed;
  }

  private long open() throws IOException {
    long begin = System.nanoTime();
    Source source = new Source(sealed, sealedSize);
    try (AesGcmInputStream stream =
        new AesGcmInputStream(source, sealedSize, key, aadPrefix)) {
      int at = 0;
      while (at < opened.length) {
        int read = stream.read(opened, at, Math.min(PIECE, opened.length - at));
        if (read < 0) {
          throw new EOFException("the stream ended early");
        }
        at += read;
      }
    }
    return System.nanoTime() - begin;
  }

  private static byte[] hex(String digits) {
    byte[] bytes = new byte[digits.length() / 2];
    for (int i = 0; i < bytes.length; i++) {
      bytes[i] = (byte) Integer.parseInt(digits.substring(2 * i, 2 * i + 2), 16);
    }
    return bytes;
  }

  /** Writes into one array, which is paid for once. */
  private static final class Sink extends PositionOutputStream {
    private final byte[] target;
    private int position = 0;

    Sink(byte[] target) {
      this.target = target;
    }

    @Override
    public long getPos() {
      return position;
    }

    @Override
    public void write(int value) {
      target[position++] = (byte) value;
    }

    @Override
    public void write(byte[] bytes, int offset, int length) {
      System.arraycopy(bytes, offset, target, position, length);
      position += length;
    }
  }

  private static final class Source extends SeekableInputStream {
    private final byte[] bytes;
    private final int size;
    private int position = 0;

    Source(byte[] bytes, int size) {
      this.bytes = bytes;
      this.size = size;
    }

    @Override
    public long getPos() {
      return position;
    }

    @Override
    public void seek(long target) {
      position = (int) target;
    }

    @Override
    public int read() {
      return position < size ? bytes[position++] & 0xff : -1;
    }

    @Override
    public int read(byte[] into, int offset, int length) {
      if (position >= size) {
        return -1;
      }
      int count = Math.min(length, size - position);
      System.arraycopy(bytes, position, into, offset, count);
      position += count;
      return count;
    }
  }
}
