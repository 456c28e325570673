package ags1.iceberg;

import static ags1.iceberg.CatalogRules.refuseIf;
import static java.nio.charset.StandardCharsets.ISO_8859_1;

import ags1.iceberg.GuardedFileIO.Piece;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.List;
import org.apache.iceberg.io.IOUtil;
import org.apache.iceberg.io.RangeReadable;
import org.apache.iceberg.io.SeekableInputStream;

/**
 * The end of an encrypted Parquet file: crypto metadata, the encrypted footer, their length, {@code
 * PARE}.
 *
 * <p>Nothing authenticates the crypto metadata. It chooses the cipher, and AES_GCM_CTR_V1 has pages
 * read without their tags. It also has an id of the file, which is a part of the additional data of each
 * part of the file: with an id of another length, an encrypted page could pass as the footer. So the
 * structure has to be, byte for byte, the one that all of Iceberg's writers make. Then no parser can
 * read it in another way. Python has the same rule.
 */
final class EncryptedParquet {
  // FileCryptoMetaData in Thrift's compact form: AES_GCM_V1, an id of 8 bytes, an AAD prefix that the
  // reader has to know.
  private static final String CRYPTO_METADATA = "(?s)\\x1c\\x1c\\x28\\x08.{8}\\x11\\x00\\x00\\x00";
  private static final int CRYPTO_SIZE = 16;
  private static final int LENGTH_SIZE = 4;
  private static final int LAST_SIZE = 8;
  private static final int TAIL_SIZE = 64 << 10; // most footers fit into this

  private EncryptedParquet() {}

  /**
   * Checks the end of a file. Returns what was checked, to be given to the reader as it is. Parquet's
   * reader authenticates the rest of the file.
   */
  static List<Piece> checkedEnd(SeekableInputStream file, long length, String location)
      throws IOException {
    // The first bytes are another piece.
    long offset = Math.max(LENGTH_SIZE, length - TAIL_SIZE);
    Piece tail = new Piece(offset, read(file, offset, length - offset, location));
    byte[] last = tail.bytes();
    int size = last.length;
    refuseIf(
        size < CRYPTO_SIZE + LENGTH_SIZE + LAST_SIZE
            || !new String(last, size - 4, 4, ISO_8859_1).equals("PARE"),
        "%s begins as an encrypted Parquet file and does not end as one: somebody replaced it",
        location);
    long footerLength = number(last, size - LAST_SIZE);
    long start = length - LAST_SIZE - footerLength;
    refuseIf(
        start < LENGTH_SIZE || footerLength < CRYPTO_SIZE + LENGTH_SIZE,
        "the length of the footer of %s is impossible: somebody changed it", location);
    int checkedSize = CRYPTO_SIZE + LENGTH_SIZE;
    boolean isInTail = start >= offset;
    byte[] checked =
        isInTail
            ? Arrays.copyOfRange(last, (int) (start - offset), (int) (start - offset) + checkedSize)
            : read(file, start, checkedSize, location);
    refuseIf(
        !new String(checked, 0, CRYPTO_SIZE, ISO_8859_1).matches(CRYPTO_METADATA)
            || number(checked, CRYPTO_SIZE) != footerLength - checkedSize,
        "the structure before the footer of %s is not as Iceberg's writers make it: somebody has "
            + "changed it, or an unknown program wrote the file", location);
    return isInTail ? List.of(tail) : List.of(new Piece(start, checked), tail);
  }

  private static long number(byte[] bytes, int at) {
    ByteBuffer buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
    return Integer.toUnsignedLong(buffer.getInt(at));
  }

  private static byte[] read(SeekableInputStream file, long offset, long size, String location)
      throws IOException {
    byte[] bytes = new byte[(int) Math.max(size, 0)];
    try {
      if (file instanceof RangeReadable ranges) {
        ranges.readFully(offset, bytes);
      } else {
        file.seek(offset);
        IOUtil.readFully(file, bytes, 0, bytes.length);
      }
    } catch (EOFException end) {
      refuseIf(true, "%s is truncated: it has not its %s bytes", location, offset + size);
    }
    return bytes;
  }
}
