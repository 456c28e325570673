"""What a catalog vouches for of its tables, and which kind of catalog it is.

Knows nothing of files and keys.
"""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.typedef import Properties

from ..errors import MetadataIntegrityError
from ..keys.manager import DATA_KEY_LENGTH, TABLE_KEY_ID
from .metadata import Trust

# Parameters of a table in a Hive metastore.
METADATA_LOCATION = "metadata_location"
METADATA_HASH = "metadata_hash"
TABLE_TYPE = "table_type"
ICEBERG = "iceberg"


def hive_trust(trust: Trust, parameters: Properties) -> Trust:
    """Add what the Hive metastore knows of a table. Raises MetadataIntegrityError when that is not
    what the caller expects."""
    key_id = parameters.get(TABLE_KEY_ID)
    if None not in (key_id, trust.key_id) and key_id != trust.key_id:
        raise MetadataIntegrityError(
            f"the Hive metastore has {key_id!r} as the table's key, and {trust.key_id!r} was "
            "expected"
        )
    java_hash = parameters.get(METADATA_HASH)
    # The hash says it all; without one, Java compares the two properties.
    length = None if java_hash else parameters.get(DATA_KEY_LENGTH)
    return Trust(trust.key_id or key_id, trust.metadata_sha256, java_hash, length)


def is_a(catalog: Catalog, name: str) -> bool:
    # By name: importing the class needs libraries that only its users have.
    return any(c.__name__ == name and _is_pyiceberg(c) for c in type(catalog).__mro__)


def _is_pyiceberg(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "pyiceberg"
