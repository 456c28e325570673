"""The parts of PyIceberg that may change without notice, and guards against what metadata can name.

All uses of private or undocumented names of PyIceberg are in this package.
``tests/iceberg/pyiceberg/test_internals.py`` looks up every private name, and checks that no other
package uses one. This package does not know about encryption.
"""

# Raises ImportError for a version that is too old, and warns of one that was not tested.
from . import versions as versions
