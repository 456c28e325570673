"""An Azure Key Vault for tests: its REST form and its challenge for a token, with real RSA keys and
its error bodies. Also a managed identity's token endpoint, as of App Service.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import time
import uuid
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from https_server import Answer, Request, Server

TOKEN = "eyJ0.a-token-that-nobody-may-see"
IDENTITY_HEADER = "the-identity-header-of-the-test"


def error(status: int, code: str, inner: str = "", message: str = "for the test") -> Answer:
    """Return Key Vault's error answer."""
    body: dict[str, object] = {"code": code, "message": message}
    if inner:
        body["innererror"] = {"code": inner}
    return Answer(status, json.dumps({"error": body}).encode())


class _RefusedError(Exception):
    def __init__(self, status: int, code: str, inner: str = "", message: str = "") -> None:
        super().__init__(message)
        self.answer = error(status, code, inner, message)


@functools.cache
def _spare_keys() -> list[rsa.RSAPrivateKey]:
    """Keys that every test may take: making one takes its time."""
    return [rsa.generate_private_key(65537, 2048) for _ in range(4)]


@dataclass
class _Version:
    key: rsa.RSAPrivateKey
    operations: list[str] = field(default_factory=lambda: ["wrapKey", "unwrapKey"])
    enabled: bool = True
    created_s: int = field(default_factory=lambda: int(time.time()))
    version: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass
class _Key:
    versions: list[_Version]


class AzureServer(Server):
    """``forbidden`` holds the permissions that the caller lacks: ``get``, ``list``, ``wrapKey`` and
    so on. ``resource`` is the domain that the challenge wants a token for: the SDK demands that the
    vault's own address ends in it."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[str, _Key] = {}
        self.forbidden: set[str] = set()
        self.token = TOKEN
        self.own_resource = f"https://0.0.1:{self.port}"
        self.resource = self.own_resource
        self._taken = 0

    def _spare(self) -> rsa.RSAPrivateKey:
        self._taken += 1
        return _spare_keys()[self._taken % len(_spare_keys())]

    def add_key(self, name: str) -> str:
        self.keys[name] = _Key([_Version(self._spare())])
        return name

    def add_version(self, name: str) -> str:
        version = _Version(self._spare())
        self.keys[name].versions.append(version)
        return version.version

    def calls(self) -> list[str]:
        """Return what was asked for with a token, versions as ``V``."""
        return [
            f"{request.method} {re.sub(r'[0-9a-f]{32}', 'V', request.path)}"
            for request in self.requests
            if "authorization" in request.headers
        ]

    def answer(self, request: Request) -> Answer:
        if request.path == "/msi/token":
            if request.headers.get("x-identity-header") != IDENTITY_HEADER:
                return Answer(401, b"{}")
            granted = {
                "access_token": self.token,
                "expires_on": str(int(time.time()) + 86_400),
                "resource": parse_qs(request.query)["resource"][0],
                "token_type": "Bearer",
            }
            return Answer(body=json.dumps(granted).encode())
        if request.headers.get("authorization") != f"Bearer {self.token}":
            challenge = (
                'Bearer authorization="https://login.microsoftonline.com/'
                f'00000000-0000-0000-0000-000000000000", resource="{self.resource}"'
            )
            refused = error(401, "Unauthorized", message="AKV10000: no valid token")
            return Answer(401, refused.body, {"WWW-Authenticate": challenge})
        try:
            return Answer(body=json.dumps(self._route(request)).encode())
        except _RefusedError as refused_error:
            return refused_error.answer

    def _route(self, request: Request) -> dict[str, object]:
        if not request.query.startswith("api-version=") and "api-version=" not in request.query:
            raise _RefusedError(400, "BadParameter", message="api-version must be specified")
        parts = request.path.strip("/").split("/")
        body = json.loads(request.body or b"{}")
        if parts[0] != "keys":
            raise _RefusedError(404, "NotFound")
        name, rest = parts[1], parts[2:]
        if name not in self.keys:
            raise _RefusedError(
                404, "KeyNotFound", message=f"A key with (name/id) {name} was not found."
            )
        versions = self.keys[name].versions
        if rest == ["versions"]:
            self._allowed("list")
            return self._page(
                request, [self._item(name, f"{name}/{one.version}", one) for one in versions]
            )
        verb = rest.pop() if rest and rest[-1] in ("wrapkey", "unwrapkey") else ""
        wanted = [one for one in versions if one.version == rest[0]] if rest else versions[-1:]
        if not wanted or len(rest) > 1:
            raise _RefusedError(404, "KeyNotFound")
        if verb:
            return self._operate(name, wanted[0], verb, body)
        self._allowed("get")
        return self._bundle(name, wanted[0])

    def _allowed(self, permission: str) -> None:
        if permission in self.forbidden:
            raise _RefusedError(403, "Forbidden", "ForbiddenByRbac", "Caller is not authorized")

    def _page(self, request: Request, items: list[dict[str, object]]) -> dict[str, object]:
        """Two items a page."""
        start = int(parse_qs(request.query).get("$skiptoken", ["0"])[0])
        link = f"{self.url}{request.path}?api-version=7.4&$skiptoken={start + 2}"
        return {
            "value": items[start : start + 2],
            "nextLink": link if len(items) > start + 2 else None,
        }

    def _item(self, name: str, path: str, version: _Version | None = None) -> dict[str, object]:
        return {
            "kid": f"{self.url}/keys/{path}",
            "attributes": self._attributes(version or self.keys[name].versions[-1]),
        }

    def _attributes(self, version: _Version) -> dict[str, object]:
        return {
            "enabled": version.enabled,
            "created": version.created_s,
            "updated": version.created_s,
            "recoveryLevel": "Recoverable",
        }

    def _bundle(self, name: str, version: _Version) -> dict[str, object]:
        numbers = version.key.public_key().public_numbers()
        size = version.key.key_size // 8
        return {
            "key": {
                "kid": f"{self.url}/keys/{name}/{version.version}",
                "kty": "RSA",
                "key_ops": version.operations,
                "n": _base64url(numbers.n.to_bytes(size, "big")),
                "e": _base64url(numbers.e.to_bytes(3, "big")),
            },
            "attributes": self._attributes(version),
        }

    def _operate(
        self, name: str, version: _Version, verb: str, body: dict[str, str]
    ) -> dict[str, object]:
        operation = {"wrapkey": "wrapKey", "unwrapkey": "unwrapKey"}[verb]
        self._allowed(operation)
        if not version.enabled:
            raise _RefusedError(
                403,
                "Forbidden",
                "KeyDisabled",
                f"Operation {operation} is not allowed on a disabled key.",
            )
        used = {
            "RSA-OAEP-256": padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None),
            "RSA-OAEP": padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None),
            "RSA1_5": padding.PKCS1v15(),
        }.get(body["alg"])
        if used is None:
            raise _RefusedError(400, "BadParameter", message="the algorithm is not supported")
        value = base64.urlsafe_b64decode(body["value"] + "==")
        try:
            if verb == "wrapkey":
                result = version.key.public_key().encrypt(value, used)
            else:
                result = version.key.decrypt(value, used)
        except ValueError:
            raise _RefusedError(
                400, "BadParameter", message="The parameter is incorrect."
            ) from None
        kid = f"{self.url}/keys/{name}/{version.version}"
        return {"kid": kid, "value": _base64url(result)}


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
