"""A KMS with one master key: an AES key in a file, for those who have such a key already.

The file has 16, 24 or 32 bytes, or twice as many hexadecimal digits and at most a newline. A key
that wraps others is derived from it (HMAC-SHA-256 over a fixed text), so that nothing that the same
key encrypts elsewhere opens here. A wrapped key is ``nonce(12) | ct | tag(16)``. The file is as
private as a keyring has to be. It has no versions and no passphrase: a keyring has both.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Mapping

from ..engine._messages import open as open_sealed
from ..engine._messages import seal
from ..engine.key_metadata import KEY_SIZES
from ..errors import AuthenticationError, KmsConfigurationError, KmsKeyNotFoundError, KmsUnwrapError
from ..host.process import OncePerProcess
from .client import MadeOfProperties, WrapsOnly
from .passphrase import ALLOW_READABLE, read_private
from .secret import discreet

PATH = "kms.file.path"
_PURPOSE = b"ags1 key file"
_HEX = re.compile(rb"([0-9A-Fa-f]{32}|[0-9A-Fa-f]{48}|[0-9A-Fa-f]{64})\n?")
_MAX_SIZE = 1 << 10


class KeyFileKms(WrapsOnly, MadeOfProperties):
    """A KMS client over the key file ``kms.file.path``; ``~`` is the home folder. The key has every
    name. ``kms.allow-readable-files`` accepts a file that others can read. The file is read when
    the key is first needed, and a pickle has its path alone. Besides the errors of ``KmsClient``,
    raises KmsAccessDeniedError for a file that is open to others, and KmsConfigurationError for one
    that has no AES key."""

    accepts_foreign_keys = False
    wraps_with_public_key = False

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        self.path = os.path.expanduser(self._properties.require(PATH))
        self._allow_readable = self._properties.flag(ALLOW_READABLE, default=False)
        self._key = OncePerProcess(self._derived_key)

    def check(self) -> None:
        """Read the file now. Raises KmsError if it cannot be used."""
        self._key.get()

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        return seal(self._key.get(), key, _PURPOSE)

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        try:
            return open_sealed(self._key.get(), wrapped_key, _PURPOSE)
        except (AuthenticationError, ValueError):
            raise KmsUnwrapError(
                f"the key file {self.path} does not open the wrapped key: another key wrapped it, "
                "or it was changed"
            ) from None

    def close(self) -> None:
        self._key.take()

    def __repr__(self) -> str:
        return f"KeyFileKms({self.path!r})"

    @discreet
    def _derived_key(self) -> bytes:
        try:
            data = read_private(
                self.path, _MAX_SIZE, "key file", allow_readable=self._allow_readable
            )
        except FileNotFoundError:
            raise KmsKeyNotFoundError(
                f"there is no key file {self.path}: without it, nothing that it has encrypted opens"
            ) from None
        if _HEX.fullmatch(data):
            data = bytes.fromhex(data.decode())
        if len(data) not in KEY_SIZES:
            raise KmsConfigurationError(
                f"the key file {self.path} has no AES key: it needs 16, 24 or 32 bytes, or twice "
                "as many hexadecimal digits"
            )
        return hmac.digest(data, _PURPOSE, "sha256")
