"""KMSs that ``encryption.kms-impl`` names in processes of their own, with few imports."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from ags1.errors import KmsAccessDeniedError, KmsUnavailableError
from ags1.kms import LocalKms
from ags1.kms.client import GeneratedKey


class WaitingKms(LocalKms):
    """A keyring that stops for a minute when its ``wait`` is to wrap or unwrap."""

    calls = 0
    accepts_foreign_keys = False

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties["test.keyring"])
        self.wait, self.marker = int(properties["test.wait"]), properties["test.marker"]

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> WaitingKms:
        return cls(properties)

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        self.calls += 1
        if self.calls == self.wait:
            Path(self.marker).touch()
            time.sleep(60)
        return super().wrap_key(key, key_id)


class BrokenKms:
    """A KMS that fails as it is told to."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.accepts_foreign_keys = properties.get("test.foreign") == "true"
        self.error = {"denied": KmsAccessDeniedError, "unavailable": KmsUnavailableError}.get(
            properties.get("test.error", ""), RuntimeError
        )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokenKms:
        return cls(properties)

    def wrap_key(self, key: bytes, key_id: str) -> NoReturn:
        raise self.error("it does not want to")

    unwrap_key = generate_key = wrap_key
    supports_key_generation = False

    def close(self) -> None:
        pass


class SilentKms:
    """A KMS that does not answer."""

    accepts_foreign_keys = False
    supports_key_generation = False

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.marker = Path(properties["test.marker"])

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> SilentKms:
        return cls(properties)

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        self.marker.touch()
        time.sleep(60)
        raise AssertionError

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        raise AssertionError

    def generate_key(self, key_id: str, key_size: int) -> GeneratedKey:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""
