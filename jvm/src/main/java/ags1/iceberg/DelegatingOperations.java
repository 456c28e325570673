package ags1.iceberg;

import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;

/**
 * The operations of {@code inner}, but for what a subclass changes. Has no state, and guards nothing:
 * a subclass says who may share it.
 */
class DelegatingOperations implements TableOperations {
  final TableOperations inner;

  DelegatingOperations(TableOperations inner) { this.inner = inner; }

  @Override public TableMetadata current() { return inner.current(); }
  @Override public TableMetadata refresh() { return inner.refresh(); }
  @Override public void commit(TableMetadata from, TableMetadata to) { inner.commit(from, to); }
  @Override public FileIO io() { return inner.io(); }
  @Override public EncryptionManager encryption() { return inner.encryption(); }
  @Override public String metadataFileLocation(String n) { return inner.metadataFileLocation(n); }
  @Override public LocationProvider locationProvider() { return inner.locationProvider(); }
  @Override public TableOperations temp(TableMetadata metadata) { return inner.temp(metadata); }
  @Override public long newSnapshotId() { return inner.newSnapshotId(); }
  @Override public boolean requireStrictCleanup() { return inner.requireStrictCleanup(); }
}
