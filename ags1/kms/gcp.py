"""Google Cloud KMS: symmetric keys by their resource names.

It calls Encrypt and Decrypt with no additional authenticated data, as Java's
``GcpKeyManagementClient`` does. So each of them reads what the other wrapped. CRC32C is checked in
both directions, as Google's page on data integrity recommends.

It uses the service's REST form and not gRPC, because workers are often forked. In a child of a
process that has used gRPC, a new channel hangs too, unless GRPC_ENABLE_FORK_SUPPORT was set before
and no thread was in a call at the fork.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

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
from .client import TRANSIENT_HTTP, SdkClient, WrapsOnly, unasked, unreadable

if TYPE_CHECKING:
    from google.cloud.kms_v1 import KeyManagementServiceClient

TOKEN = "gcs.oauth2.token"
TOKEN_EXPIRES_AT = "gcs.oauth2.token-expires-at"
ENDPOINT = "kms.gcp.endpoint"
ANONYMOUS = "kms.gcp.anonymous"

_DEFAULT_HOST = "cloudkms.googleapis.com"
_KEY = re.compile(
    r"(?P<key>projects/[A-Za-z0-9][A-Za-z0-9.:_-]*/locations/[A-Za-z0-9-]+/keyRings/[\w-]+"
    r"/cryptoKeys/[\w-]+)(?:/cryptoKeyVersions/[0-9]+)?",
    re.ASCII,
)
_KEY_FORM = "projects/P/locations/L/keyRings/R/cryptoKeys/K"
_STATUS = re.compile(r"[A-Z_]{2,40}")
_STATE = re.compile(r"state is:? ([A-Z_]{2,40})")

_UNAVAILABLE = frozenset(
    "ABORTED CANCELLED DEADLINE_EXCEEDED INTERNAL RESOURCE_EXHAUSTED UNAVAILABLE UNKNOWN".split()
)


class _CorruptedError(Exception):
    """A checksum says that the request or the answer was changed on its way."""


class GcpKms(WrapsOnly, SdkClient["KeyManagementServiceClient"]):
    """A KMS client for Google Cloud KMS.

    A key ID is ``projects/P/locations/L/keyRings/R/cryptoKeys/K``. If ``/cryptoKeyVersions/N``
    follows, that version wraps. To unwrap, the service finds the version itself.

    Properties:

    - ``gcs.oauth2.token`` and ``gcs.oauth2.token-expires-at`` (epoch ms). Without a token, Google's
      application default credentials are used.
    - ``kms.gcp.endpoint``: ``host``, ``host:port`` or ``https://host``. ``http://`` is for an
      emulator. It needs ``kms.gcp.anonymous`` = true and gets no credentials. It must be on this
      machine unless ``kms.allow-plaintext-http`` is true.
    - time-outs and attempts as in every remote client.

    Google's libraries log requests with plaintext keys at DEBUG. When this client connects, it
    removes the bodies from these log records for the whole process.
    """

    accepts_foreign_keys = True
    wraps_with_public_key = False
    _fixed_credential = TOKEN
    _extra = "gcp"
    _libraries = ("google.cloud.kms_v1", "google_crc32c")

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        given = self._properties
        url = given.get(ENDPOINT) or _DEFAULT_HOST
        url = url if "://" in url else f"https://{url}"
        allowed = endpoints.is_allowed(given)
        self._url = endpoints.checked_url(f"the property {ENDPOINT!r}", url, allowed=allowed)
        self._shown = self._url.removeprefix("https://")
        self._plaintext = self._url.startswith("http:")
        self._anonymous = given.flag(ANONYMOUS, default=False)
        if self._anonymous and given.get(TOKEN):
            raise KmsConfigurationError(f"both {ANONYMOUS!r} and {TOKEN!r} are given: give one")
        if self._plaintext and not self._anonymous:
            raise KmsConfigurationError(
                f"the property {ENDPOINT!r} is not https: credentials are not sent there; "
                f"for an emulator, set {ANONYMOUS!r} to 'true'"
            )
        self._expires_at = _expiry(given.get(TOKEN_EXPIRES_AT))

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        _parse_key_id(key_id)
        request = {"name": key_id, "plaintext": key, "plaintext_crc32c": _crc32c(key)}

        def encrypt(client: KeyManagementServiceClient, **options: Any) -> bytes:
            answer = client.encrypt(request=request, **options)
            wrapped_key = bytes(answer.ciphertext)
            whole = answer.ciphertext_crc32c == _crc32c(wrapped_key)
            if not (whole and answer.verified_plaintext_crc32c and wrapped_key):
                raise _CorruptedError
            return wrapped_key

        return self._call("encrypt", key_id, lambda client: self._retried(encrypt, client))

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        name = _parse_key_id(key_id)["key"]
        if not wrapped_key:
            raise KmsUnwrapError("the wrapped key is empty")
        checksum = _crc32c(wrapped_key)
        request = {"name": name, "ciphertext": wrapped_key, "ciphertext_crc32c": checksum}

        def decrypt(client: KeyManagementServiceClient, **options: Any) -> bytes:
            answer = client.decrypt(request=request, **options)
            key = bytes(answer.plaintext)
            if answer.plaintext_crc32c != _crc32c(key):
                raise _CorruptedError
            return key

        return self._call("decrypt", key_id, lambda client: self._retried(decrypt, client))

    def close(self) -> None:
        if client := self._connection.take():
            client.transport.close()

    def __repr__(self) -> str:
        return f"GcpKms({self._shown!r})"

    def _connect(self) -> KeyManagementServiceClient:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.kms_v1 import KeyManagementServiceClient
        from google.cloud.kms_v1.services.key_management_service.transports.rest import (
            KeyManagementServiceRestTransport,
        )
        from google.oauth2.credentials import Credentials

        _hide_bodies_in_logs()
        credentials: Any = None  # Google's application default
        if self._anonymous:
            credentials = AnonymousCredentials()
        elif token := self._properties.get(TOKEN):
            credentials = Credentials(token=token, expiry=self._expires_at)
        transport: Any = "rest"
        if self._plaintext:
            endpoints.check_proxy(self._url)
            transport = functools.partial(KeyManagementServiceRestTransport, url_scheme="http")
        client = KeyManagementServiceClient(
            credentials=credentials,
            transport=transport,
            client_options={"api_endpoint": self._url.partition("://")[2]},
        )
        # Do not follow redirects: a key is sent to the endpoint alone. There is no public setting.
        client.transport._session.max_redirects = 0
        return client

    def _retried(self, attempt: Callable[..., bytes], client: KeyManagementServiceClient) -> bytes:
        from google.api_core.retry import Retry
        from google.api_core.timeout import ConstantTimeout

        left = self._max_attempts - 1

        def again(error: Exception) -> bool:
            nonlocal left
            left -= 1
            return left >= 0 and _is_transient(error)

        # Here and not in the SDK, so that a failed checksum counts as an attempt too. The REST
        # transport takes a pair of time-outs: for the connection and for each read.
        retry = Retry(predicate=again, initial=0.1, maximum=2.0, multiplier=2.0, timeout=None)
        result: bytes = retry(attempt)(client, retry=None, timeout=ConstantTimeout(self._timeout_s))
        return result

    def _failure(self, action: str, key_id: str, error: Exception) -> KmsError:
        import google.auth.exceptions
        import requests
        from google.api_core.exceptions import GoogleAPICallError

        where = f"Google Cloud KMS ({self._shown})"
        subject = f"to {action} with the key {key_id!r}"
        if isinstance(error, _CorruptedError) or _is_corrupted_request(error):
            return KmsUnavailableError(
                f"the checksums of the requests to {where} {subject}, or of its answers, do not "
                "match in any attempt: something between here and there changes data"
            )
        trust = (
            "REQUESTS_CA_BUNDLE names a file with the certificate of the authority that signed it"
        )
        if isinstance(error, google.auth.exceptions.TransportError):
            request = f"cannot reach Google for credentials {subject}"
            return unasked(error, request, trust)
        if isinstance(error, google.auth.exceptions.GoogleAuthError):
            cause = (
                f"the token in {TOKEN!r} has expired or is not accepted"
                if self._properties.get(TOKEN)
                else "no usable application default credentials (gcloud auth application-default "
                f"login, or GOOGLE_APPLICATION_CREDENTIALS{_named_file()})"
            )
            return KmsAccessDeniedError(f"no credentials for {where} {subject}: {cause}")
        if isinstance(error, requests.TooManyRedirects):
            return KmsError(f"{where} points elsewhere {subject}: is the endpoint right?")
        if isinstance(error, requests.Timeout):
            return KmsUnavailableError(f"{where} did not answer in time {subject}")
        if isinstance(error, requests.RequestException):
            request = f"{where} could not be reached {subject}"
            return unasked(error, request, trust)
        named = _named_file() and not self._properties.get(TOKEN)
        if isinstance(error, (OSError, UnicodeError)) and named:
            # Not a request's, but of a file with credentials.
            return unreadable(error, f"GOOGLE_APPLICATION_CREDENTIALS{_named_file()}", where)
        if isinstance(error, GoogleAPICallError):
            return _service_failure(error, action, key_id, where)
        return KmsError(
            f"{where} gave an answer {subject} that this service never gives "
            f"({type(error).__name__}): is the endpoint right?"
        )


def _named_file() -> str:
    path = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    return f", which names {path}" if path else ""


def _service_failure(error: Any, action: str, key_id: str, where: str) -> KmsError:
    status, message, reason = _status(error)
    if status is None:
        code = int(error.code or 0)
        problem = f"{where} answered HTTP {code} to {action} with the key {key_id!r}"
        if code in TRANSIENT_HTTP:
            return KmsUnavailableError(problem)
        if code in (401, 403):
            return KmsAccessDeniedError(f"{problem}, but not in that service's form: a proxy?")
        return KmsError(f"{problem}, but not in that service's form: is the endpoint right?")
    codes = f"{status}, {reason}" if reason else status
    problem = f"{where} refused to {action} with the key {key_id!r} ({codes})"
    if status == "NOT_FOUND":
        return KmsKeyNotFoundError(f"{problem}: it does not exist")
    if status == "UNAUTHENTICATED":
        return KmsAccessDeniedError(f"{problem}: the credentials are not valid, or no longer")
    if status == "PERMISSION_DENIED":
        return KmsAccessDeniedError(
            f"{problem}: the caller lacks the permission (a role like "
            "roles/cloudkms.cryptoKeyEncrypterDecrypter on it), or the key does not exist"
        )
    if status == "FAILED_PRECONDITION" and "purpose" not in message:
        state = _STATE.search(message)
        return KmsKeyDisabledError(
            f"{problem}: the key version is not enabled" + (f" but {state[1]}" if state else "")
        )
    if status == "INVALID_ARGUMENT" and action == "decrypt":
        return KmsUnwrapError(f"{problem}: another key wrapped it, or it was changed")
    if status in _UNAVAILABLE:
        return KmsUnavailableError(f"{problem}, after all attempts")
    return KmsError(problem)


def _status(error: Any) -> tuple[str | None, str, str]:
    """Return a REST answer's canonical code (None if it is not Google's), message and reason."""
    try:
        body = error.response.json()["error"]
        status, message = body["status"], body["message"]
        details = body.get("details", ())
        reasons = [one.get("reason") for one in details if isinstance(one, dict)]
    except (AttributeError, KeyError, TypeError, ValueError):
        return None, "", ""
    if not isinstance(status, str) or not _STATUS.fullmatch(status):
        return None, "", ""
    codes = [one for one in reasons if isinstance(one, str) and _STATUS.fullmatch(one)]
    return status, str(message), codes[0] if codes else ""


def _is_transient(error: Exception) -> bool:
    import google.auth.exceptions
    import requests
    from google.api_core.exceptions import GoogleAPICallError

    if isinstance(error, GoogleAPICallError):
        return error.code in TRANSIENT_HTTP or _is_corrupted_request(error)
    if isinstance(error, requests.exceptions.SSLError):
        return False
    lost = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
    return isinstance(error, (_CorruptedError, google.auth.exceptions.TransportError, *lost))


def _is_corrupted_request(error: Exception) -> bool:
    """Whether the service says that our request does not match its checksum."""
    status, message, _ = _status(error)
    return status == "INVALID_ARGUMENT" and "crc32c" in message


def _crc32c(data: bytes) -> int:
    import google_crc32c

    return int(google_crc32c.value(data))


def _parse_key_id(key_id: str) -> re.Match[str]:
    match = _KEY.fullmatch(key_id)
    if match is None:
        raise KmsKeyNotFoundError(
            f"{key_id!r} is not the name of a key of Google Cloud KMS: it has the form {_KEY_FORM}"
        )
    return match


def _expiry(text: str | None) -> datetime | None:
    """Return a time in epoch milliseconds as google-auth wants it: naive, in UTC."""
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,15}", text) or int(text) >= 253_402_300_800_000:
        raise KmsConfigurationError(f"the property {TOKEN_EXPIRES_AT!r} is no time in epoch ms")
    return datetime.fromtimestamp(int(text) / 1000, timezone.utc).replace(tzinfo=None)


# The harmless parts of a logged request or answer.
_LOGGED = frozenset(("method", "url", "requestMethod", "requestUrl", "status"))
_CALLS_WITH_KEYS = (":encrypt", ":decrypt")


def _hide_bodies(record: logging.LogRecord) -> bool:
    for name in ("httpRequest", "httpResponse", "request", "response"):
        logged = record.__dict__.get(name)
        if logged is None:
            continue
        fields = logged if isinstance(logged, dict) else {}
        if record.name.startswith("google.auth."):
            # Other libraries use this logger too. Only our records are changed.
            path = str(fields.get("url", "")).partition("?")[0]
            if not path.endswith(_CALLS_WITH_KEYS):
                continue
        record.__dict__[name] = {key: fields[key] for key in _LOGGED & fields.keys()}
    return True


def _hide_bodies_in_logs() -> None:
    transport = "google.cloud.kms_v1.services.key_management_service.transports.rest"
    for name in (transport, "google.auth.transport.requests"):
        # The same function again changes nothing.
        logging.getLogger(name).addFilter(_hide_bodies)
