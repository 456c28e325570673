"""Azure Key Vault: RSA keys, whose public half wraps and whose private half never leaves the vault.

A wrapped key is the ciphertext alone, as in Java's ``AzureKeyManagementClient``. So each of them
reads what the other wrapped, as long as the key was not rotated. Java always uses a key's latest
version. This client also tries older versions to unwrap. The vault does the wrapping too, over the
SDK's own pipeline: the SDK's CryptographyClient would fetch the public key first, wrap here, and
not notice that the key is disabled.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
import time
from collections.abc import Mapping
from typing import Any

from ..errors import (
    KmsAccessDeniedError,
    KmsConfigurationError,
    KmsError,
    KmsKeyDisabledError,
    KmsKeyNotFoundError,
    KmsUnavailableError,
    KmsUnwrapError,
)
from . import endpoints
from .client import TRANSIENT_HTTP, SdkClient, WrapsOnly, unasked
from .secret import Secret, discreet

VAULT_URL = "azure.keyvault.url"
KEY_WRAP_ALGORITHM = "azure.keyvault.key-wrap-algorithm"
TOKEN = "kms.azure.token"
_JAVA_CREDENTIALS = "adls.token-credential-provider"

_RSA_OAEP_256 = "RSA-OAEP-256"
_RSA1_5 = "RSA1_5"
_RSA = (_RSA_OAEP_256, "RSA-OAEP", _RSA1_5)
# A managed HSM's symmetric keys.
_AES = ("A128KW", "A192KW", "A256KW", "CKM_AES_KEY_WRAP", "CKM_AES_KEY_WRAP_PAD")

_NAME = re.compile(r"[0-9A-Za-z-]{1,127}")
_VERSION = re.compile(r"[0-9A-Za-z]{1,64}")
_CODE = re.compile(r"[A-Za-z]{1,60}")
_DISABLED = frozenset(("KeyDisabled", "KeyExpired", "KeyNotYetValid"))
_DISABLED_MESSAGE = re.compile(r"not allowed on an? (disabled|expired|not yet valid) key")

_MAX_RETRY_AFTER_S = 10.0


class AzureKms(WrapsOnly, SdkClient[tuple[Any, Any]]):
    """A KMS client for Azure Key Vault and managed HSMs.

    A key ID is a key's name, which means its latest version; ``name/version``; or the key's whole
    identifier, ``https://<vault>/keys/<name>[/<version>]``, if it is in the configured vault. No
    other vault is sent a token. If the latest version of a name without a version does not unwrap,
    the other enabled versions are tried, the newest first. That needs the permission to list keys.

    Properties:

    - ``azure.keyvault.url``, which is always https: the SDK sends no token over http, not even to
      this machine.
    - ``azure.keyvault.key-wrap-algorithm`` (``RSA-OAEP-256``). RSA1_5 only unwraps what Java
      wrapped with it.
    - ``kms.azure.token``, a bearer token for the vault. Without it, azure-identity's
      DefaultAzureCredential finds the credentials, as in Java. ``adls.token`` is for storage and is
      not used, as in Java. Java's ``adls.token-credential-provider`` names a Java class, and is
      refused.
    - time-outs and attempts as in every remote client.
    """

    accepts_foreign_keys = False
    _fixed_credential = TOKEN
    _extra = "azure"
    _libraries = ("azure.identity", "azure.keyvault.keys")

    @property
    def wraps_with_public_key(self) -> bool:
        """Whether the configured algorithm is an RSA one."""
        return self._algorithm in _RSA

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        vault = self._properties.require(VAULT_URL, hint="https://<name>.vault.azure.net")
        name = f"the property {VAULT_URL!r}"
        self._vault = endpoints.checked_url(name, vault, allowed=False).removesuffix(":443")
        if not self._vault.startswith("https:"):
            raise KmsConfigurationError(f"{name} is not https: the SDK sends no token there")
        self._algorithm = self._properties.choice(
            KEY_WRAP_ALGORITHM, default=_RSA_OAEP_256, choices=(*_RSA, *_AES)
        )
        if self._properties.get(_JAVA_CREDENTIALS) and not self._properties.get(TOKEN):
            raise KmsConfigurationError(
                f"the property {_JAVA_CREDENTIALS!r} names a Java class: take it out, and "
                "DefaultAzureCredential finds the credentials"
            )

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        if self._algorithm == _RSA1_5:
            raise KmsConfigurationError(
                f"{KEY_WRAP_ALGORITHM!r} is RSA1_5, which only unwraps here: its padding leaks to "
                "whoever can have many ciphertexts tried; wrap with RSA-OAEP-256"
            )
        name, version = self._parse_key_id(key_id)
        return self._operate("wrap", name, version, key, key_id)

    @discreet
    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        name, version = self._parse_key_id(key_id)
        if not wrapped_key:
            raise KmsUnwrapError("the wrapped key is empty")
        try:
            return self._operate("unwrap", name, version, wrapped_key, key_id)
        except (KmsUnwrapError, KmsKeyDisabledError) as error:
            if version is not None:
                raise
            return self._unwrap_with_older(name, wrapped_key, key_id, error)

    def _unwrap_with_older(
        self, name: str, wrapped_key: bytes, key_id: str, failure: KmsError
    ) -> bytes:
        try:
            versions = self._enabled_versions(name, key_id)
        except KmsAccessDeniedError:
            raise type(failure)(
                f"{failure.message}; older versions were not tried, because the caller may not "
                "list the key's versions"
            ) from None
        for version in versions:
            with contextlib.suppress(KmsUnwrapError, KmsKeyDisabledError):
                return self._operate("unwrap", name, version, wrapped_key, key_id)
        if not versions:
            raise failure
        raise type(failure)(
            f"{failure.message}. Each of the key's {len(versions)} enabled versions was tried"
        )

    def close(self) -> None:
        for part in self._connection.take() or ():
            part.close()

    def __repr__(self) -> str:
        return f"AzureKms({self._vault!r})"

    def _connect(self) -> tuple[Any, Any]:
        """Return a KeyClient and its credential."""
        from azure.core.pipeline.policies import RetryPolicy
        from azure.identity import DefaultAzureCredential
        from azure.keyvault.keys import KeyClient

        class BoundedRetryPolicy(RetryPolicy):  # type: ignore[misc]
            """Does not wait for minutes, which an overloaded service may ask for."""

            def get_retry_after(self, response: Any) -> float | None:
                seconds: float | None = super().get_retry_after(response)
                return None if seconds is None else min(seconds, _MAX_RETRY_AFTER_S)

        counted = ("retry_total", "retry_connect", "retry_read", "retry_status")
        retries: dict[str, Any] = dict.fromkeys(counted, self._max_attempts - 1)
        token = self._properties.get(TOKEN)
        credential: Any = _StaticCredential(token) if token else DefaultAzureCredential()
        client = KeyClient(
            self._vault,
            credential,
            retry_policy=BoundedRetryPolicy(
                **retries, retry_backoff_factor=0.1, retry_backoff_max=2
            ),
            connection_timeout=self._timeout_s[0],
            read_timeout=self._timeout_s[1],
            # Redirects are not followed, and requests are not logged, because they have the key and
            # the token.
            permit_redirects=False,
            logging_enable=False,
        )
        return client, credential

    def _operate(
        self, action: str, name: str, version: str | None, value: bytes, key_id: str
    ) -> bytes:
        """Have the vault wrap or unwrap ``value``."""

        def operate(connection: tuple[Any, Any]) -> bytes:
            from azure.core.rest import HttpRequest

            target = f"/keys/{name}/{version}" if version else f"/keys/{name}"
            text = base64.urlsafe_b64encode(value).rstrip(b"=").decode()
            body = {"alg": self._algorithm, "value": text}
            request = HttpRequest("POST", f"{target}/{action}key", json=body)
            # It is safe to repeat the request.
            posts = frozenset(("POST",))
            response = connection[0].send_request(request, retry_on_methods=posts)
            if response.status_code != 200:
                status = int(response.status_code)
                raise self._refused(action, key_id, status, bytes(response.content))
            result = _from_base64url(_json_object(bytes(response.content)).get("value"))
            if not result:
                raise self._nonsense(action, key_id)
            return result

        return self._call(action, key_id, operate)

    def _enabled_versions(self, name: str, key_id: str) -> list[str]:
        """Return a key's enabled versions, newest first; none if there is only one version."""

        def list_all(connection: tuple[Any, Any]) -> list[Any]:
            return list(connection[0].list_properties_of_key_versions(name))

        versions = self._call("list the versions of", key_id, list_all)
        if len(versions) < 2:
            return []
        # The newest version was tried already and is tried again: creation times are in seconds, so
        # it is not certain which one that was.
        versions.sort(
            key=lambda one: one.created_on.timestamp() if one.created_on else 0, reverse=True
        )
        return [str(one.version) for one in versions if one.enabled]

    def _parse_key_id(self, key_id: str) -> tuple[str, str | None]:
        path = key_id
        if "://" in key_id:
            prefix = f"{self._vault}/keys/"
            start = key_id[: len(prefix)]
            # Capital letters do not matter in the host only.
            if start.lower() != prefix.lower() or not start.endswith("/keys/"):
                raise KmsConfigurationError(
                    f"the key {key_id!r} is not in the vault {self._vault}, which {VAULT_URL!r} "
                    "names, and no other vault is asked"
                )
            path = key_id[len(prefix) :]
        name, slash, version = path.partition("/")
        if not _NAME.fullmatch(name) or (slash and not _VERSION.fullmatch(version)):
            raise KmsKeyNotFoundError(
                f"{key_id!r} is not the name of a key of Azure Key Vault: it has the form NAME, "
                f"NAME/VERSION or {self._vault}/keys/NAME"
            )
        return name, version or None

    def _failure(self, action: str, key_id: str, error: Exception) -> KmsError:
        from azure.core import exceptions as sdk

        request = self._request(action, key_id)
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        if isinstance(error, sdk.ClientAuthenticationError) and status != 401:
            return KmsAccessDeniedError(
                f"no credentials for {request}: DefaultAzureCredential found none that work (az "
                f"login, AZURE_CLIENT_ID and others, a managed identity), and {TOKEN!r} is not set"
            )
        if isinstance(error, sdk.DecodeError):
            return self._nonsense(action, key_id)
        if isinstance(error, sdk.HttpResponseError) and response is not None:
            body = b""
            with contextlib.suppress(AttributeError, sdk.AzureError):
                body = bytes(response.body())
            return self._refused(action, key_id, int(response.status_code), body)
        if isinstance(error, (sdk.ServiceRequestError, sdk.ServiceResponseError)):
            trust = "REQUESTS_CA_BUNDLE names a file with the certificate of the authority"
            unanswered = f"no answer to {request} after {self._max_attempts} attempts"
            return unasked(error, unanswered, trust)
        if isinstance(error, ValueError):
            # The SDK has checked the server that the vault names for tokens.
            return KmsAccessDeniedError(
                f"the server that answered {request} asks for a token that is not for it, and was "
                "sent none: is the address right?"
            )
        return self._nonsense(action, key_id)

    def _refused(self, action: str, key_id: str, status: int, body: bytes) -> KmsError:
        error = _json_object(body).get("error")
        error = error if isinstance(error, dict) else {}
        inner = error.get("innererror")
        codes = [error.get("code"), inner.get("code") if isinstance(inner, dict) else None]
        named = [code for code in codes if isinstance(code, str) and _CODE.fullmatch(code)]
        shown = ", ".join([f"HTTP {status}", *named])
        problem = f"{self._request(action, key_id)} was refused ({shown})"
        if not named and status not in (401, *TRANSIENT_HTTP):
            return KmsError(
                f"{problem}, but not in the form of Azure Key Vault: is the address right?"
            )
        if status == 403 and (
            _DISABLED & set(named) or _DISABLED_MESSAGE.search(str(error.get("message")))
        ):
            return KmsKeyDisabledError(f"{problem}: the key is disabled, expired or not valid yet")
        if status == 401:
            return KmsAccessDeniedError(f"{problem}: the token is not valid, or no longer")
        if status == 403:
            return KmsAccessDeniedError(
                f"{problem}: the caller lacks the permission (a role like Key Vault Crypto Service "
                "Encryption User), or the vault's firewall is in the way"
            )
        if status == 404:
            return KmsKeyNotFoundError(f"{problem}: there is no such key or version")
        if status == 400 and action == "unwrap":
            return KmsUnwrapError(
                f"{problem}: another key or another {KEY_WRAP_ALGORITHM!r} than {self._algorithm} "
                "wrapped it, or it was changed"
            )
        if status in TRANSIENT_HTTP:
            return KmsUnavailableError(f"{problem}, after all attempts")
        return KmsError(problem)

    def _nonsense(self, action: str, key_id: str) -> KmsError:
        request = self._request(action, key_id)
        return KmsError(f"what answered {request} is not Azure Key Vault: is the address right?")

    def _request(self, action: str, key_id: str) -> str:
        return f"the request to {action} with the key {key_id!r} in the vault {self._vault}"


class _StaticCredential(Secret):
    """A bearer token, as azure-core asks for one."""

    __slots__ = ("_token",)

    def __init__(self, token: str) -> None:
        self._token = token

    def get_token(self, *scopes: str, **options: Any) -> Any:
        from azure.core.credentials import AccessToken

        # It is unknown when the token expires. After that, the vault refuses it.
        return AccessToken(self._token, int(time.time()) + 3600)

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _from_base64url(text: object) -> bytes | None:
    if isinstance(text, str) and re.fullmatch(r"[0-9A-Za-z_-]*={0,2}", text):
        with contextlib.suppress(binascii.Error):
            return base64.urlsafe_b64decode(text + "==")  # more padding than needed does no harm
    return None
