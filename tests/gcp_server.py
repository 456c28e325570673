"""A Google Cloud KMS for tests: its REST form with the client library's own message types, really
encrypting (AES-256-GCM bound to the key's name), with the checksums that Google's documents ask
for and its error bodies.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections import deque
from dataclasses import dataclass, field
from urllib.parse import unquote

import google_crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.cloud.kms_v1.types import resources, service
from https_server import Answer, Request, Server

RING = "projects/test-project/locations/europe-west1/keyRings/test-ring"
TOKEN = "ya29.a-token-that-nobody-may-see"

_HTTP = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
_MISMATCH = "The checksum in field {0}_crc32c did not match the data in field {0}."
_STATES = resources.CryptoKeyVersion.CryptoKeyVersionState


def error(status: str, message: str = "for the test", reason: str = "") -> Answer:
    """Return Google's error answer of a canonical status."""
    body: dict[str, object] = {"code": _HTTP[status], "message": message, "status": status}
    if reason:
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}
        body["details"] = [{**info, "domain": "googleapis.com", "metadata": {}}]
    return Answer(_HTTP[status], json.dumps({"error": body}).encode())


class _RefusedError(Exception):
    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.answer = error(status, message)


@dataclass
class _Version:
    number: int
    state: _STATES = _STATES.ENABLED
    key: bytes = field(default_factory=lambda: os.urandom(32))


@dataclass
class _Key:
    versions: list[_Version] = field(default_factory=lambda: [_Version(1)])
    primary: int = 1


class GcpServer(Server):
    """``corruptions`` names, one a call, what is changed on its way: ``request``, ``ciphertext``,
    ``plaintext`` (the bytes, under the right checksum), ``checksum`` or ``unverified``."""

    def __init__(self, *, tls: bool = True) -> None:
        super().__init__(tls=tls)
        self.keys: dict[str, _Key] = {}
        self.corruptions: deque[str] = deque()
        self.authorization: str | None = f"Bearer {TOKEN}"

    def add_key(self, name: str) -> str:
        self.keys[f"{RING}/cryptoKeys/{name}"] = _Key()
        return f"{RING}/cryptoKeys/{name}"

    def rotate(self, key_id: str) -> None:
        key = self.keys[key_id]
        key.versions.append(_Version(len(key.versions) + 1))
        key.primary = len(key.versions)

    def disable(self, key_id: str, number: int) -> None:
        self.keys[key_id].versions[number - 1].state = _STATES.DISABLED

    def answer(self, request: Request) -> Answer:
        if self.authorization and request.headers.get("authorization") != self.authorization:
            return error("UNAUTHENTICATED", "Request had invalid authentication credentials.")
        resource, _, verb = unquote(request.path).removeprefix("/v1/").partition(":")
        try:
            return Answer(body=self._route(request, resource, verb).encode())
        except _RefusedError as refused:
            return refused.answer

    def _route(self, request: Request, resource: str, verb: str) -> str:
        body = request.body.decode() or "{}"
        if verb == "encrypt":
            return self._encrypt(resource, service.EncryptRequest.from_json(body))
        if verb == "decrypt":
            return self._decrypt(resource, service.DecryptRequest.from_json(body))
        raise _RefusedError("NOT_FOUND", f"there is no {request.method} {resource}.")

    def _encrypt(self, resource: str, asked: service.EncryptRequest) -> str:
        name, _, number = resource.partition("/cryptoKeyVersions/")
        version = self._usable(name, int(number or self._key(name).primary))
        corruption = self.corruptions.popleft() if self.corruptions else ""
        plaintext = asked.plaintext + (b"x" if corruption == "request" else b"")
        checked = asked.plaintext_crc32c is not None
        if checked and asked.plaintext_crc32c != google_crc32c.value(plaintext):
            raise _RefusedError(
                "INVALID_ARGUMENT",
                _MISMATCH.format("plaintext"),
            )
        nonce = os.urandom(12)
        sealed = AESGCM(version.key).encrypt(nonce, plaintext, name.encode())
        ciphertext = struct.pack(">I", version.number) + nonce + sealed
        checksum = google_crc32c.value(ciphertext)
        return service.EncryptResponse.to_json(
            service.EncryptResponse(
                name=f"{name}/cryptoKeyVersions/{version.number}",
                ciphertext=ciphertext + (b"x" if corruption == "ciphertext" else b""),
                ciphertext_crc32c=checksum ^ (corruption == "checksum"),
                verified_plaintext_crc32c=checked and corruption != "unverified",
            )
        )

    def _decrypt(self, resource: str, asked: service.DecryptRequest) -> str:
        if not re.fullmatch(
            r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+", resource
        ):
            raise _RefusedError("INVALID_ARGUMENT", "Decrypt takes a CryptoKey's name.")
        corruption = self.corruptions.popleft() if self.corruptions else ""
        ciphertext = asked.ciphertext + (b"x" if corruption == "request" else b"")
        if asked.ciphertext_crc32c != google_crc32c.value(ciphertext):
            raise _RefusedError(
                "INVALID_ARGUMENT",
                _MISMATCH.format("ciphertext"),
            )
        key = self._key(resource)
        number = struct.unpack(">I", ciphertext[:4])[0] if len(ciphertext) >= 32 else 0
        wrong = "Decryption failed: the ciphertext is invalid."
        if not 0 < number <= len(key.versions) or len(ciphertext) > 65_536 + 100:
            raise _RefusedError("INVALID_ARGUMENT", wrong)
        version = self._usable(resource, number)
        try:
            plaintext = AESGCM(version.key).decrypt(
                ciphertext[4:16], ciphertext[16:], resource.encode()
            )
        except InvalidTag:
            raise _RefusedError("INVALID_ARGUMENT", wrong) from None
        checksum = google_crc32c.value(plaintext)
        return service.DecryptResponse.to_json(
            service.DecryptResponse(
                plaintext=plaintext[:-1] + b"x" if corruption == "plaintext" else plaintext,
                plaintext_crc32c=checksum ^ (corruption == "checksum"),
            )
        )

    def _key(self, name: str) -> _Key:
        if name not in self.keys:
            raise _RefusedError("NOT_FOUND", f"CryptoKey {name} not found.")
        return self.keys[name]

    def _usable(self, name: str, number: int) -> _Version:
        version = self._key(name).versions[number - 1]
        if version.state != _STATES.ENABLED:
            raise _RefusedError(
                "FAILED_PRECONDITION",
                f"{name}/cryptoKeyVersions/{number} is not enabled, current state is: "
                f"{version.state.name}.",
            )
        return version
