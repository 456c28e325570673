package ags1.iceberg.kms;

/** A KMS cannot wrap or unwrap a key. The message names the master key and where it is. */
public final class KmsException extends RuntimeException {
  KmsException(String message, Object... arguments) { super(String.format(message, arguments)); }

  static void when(boolean failed, String message, Object... arguments) {
    if (failed) {
      throw new KmsException(message, arguments);
    }
  }
}
