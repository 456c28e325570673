"""What PyIceberg does not promise to keep, and what it obeys and must not.

Every name of PyIceberg that is private or undocumented and that we use anyway is in this package.
``tests/iceberg/pyiceberg/test_internals.py`` looks up every private name, and holds that no other
package uses one. Knows nothing of encryption.
"""

# Raises ImportError for a version that is too old, and warns of one that was not tested.
from . import versions as versions
