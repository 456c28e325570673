"""The AWS Encryption SDK with a raw AES keyring: no KMS, no signature, frames of 1 MiB."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import time
from typing import Any

from bench.material import Material

from .process import PeerError

FRAME_SIZE = 1 << 20


class AwsEncryptionSdk:
    name = "AWS Encryption SDK"
    writes_ags1 = False
    rounds: int | None = 3

    def missing(self) -> str | None:
        modules = ("aws_encryption_sdk", "aws_cryptographic_material_providers")
        if all(importlib.util.find_spec(module) for module in modules):
            return None
        return "pip install 'aws-encryption-sdk[MPL]'"

    def version(self) -> str:
        return importlib.metadata.version("aws-encryption-sdk")

    def start(self, material: Material) -> None:
        # Not imports, so that type checkers need not know a package that is seldom there.
        sdk: Any = importlib.import_module("aws_encryption_sdk")
        mpl: Any = importlib.import_module("aws_cryptographic_material_providers.mpl")
        config: Any = importlib.import_module("aws_cryptographic_material_providers.mpl.config")
        models: Any = importlib.import_module("aws_cryptographic_material_providers.mpl.models")
        # The suites without a signature; the one for 128 bits has no key commitment to require.
        suites = {
            16: sdk.Algorithm.AES_128_GCM_IV12_TAG16_HKDF_SHA256,
            32: sdk.Algorithm.AES_256_GCM_HKDF_SHA512_COMMIT_KEY,
        }
        if len(material.key) not in suites:
            raise PeerError(f"no suite was chosen for a key of {len(material.key)} bytes")
        self._suite: Any = suites[len(material.key)]
        policies = sdk.CommitmentPolicy
        self._client: Any = sdk.EncryptionSDKClient(
            commitment_policy=policies.FORBID_ENCRYPT_ALLOW_DECRYPT
            if len(material.key) == 16
            else policies.REQUIRE_ENCRYPT_REQUIRE_DECRYPT
        )
        providers = mpl.AwsCryptographicMaterialProviders(config=config.MaterialProvidersConfig())
        self._keyring: Any = providers.create_raw_aes_keyring(
            input=models.CreateRawAesKeyringInput(
                key_namespace="ags1",
                key_name="bench",
                wrapping_key=os.urandom(32),
                wrapping_alg=models.AesWrappingAlg.ALG_AES256_GCM_IV12_TAG16,
            )
        )
        self._plaintext = bytes(material.plaintext)
        self._sealed = self._opened = b""

    def seal(self) -> float:
        self._sealed = b""
        begin = time.perf_counter()
        self._sealed, _ = self._client.encrypt(
            source=self._plaintext,
            keyring=self._keyring,
            algorithm=self._suite,
            frame_length=FRAME_SIZE,
        )
        return time.perf_counter() - begin

    def open(self) -> float:
        self._opened = b""
        begin = time.perf_counter()
        self._opened, _ = self._client.decrypt(source=self._sealed, keyring=self._keyring)
        return time.perf_counter() - begin

    def check(self) -> None:
        if self._opened != self._plaintext:
            raise PeerError("the plaintext did not come back")

    def stop(self) -> None:
        del self._client, self._keyring, self._plaintext, self._sealed, self._opened
