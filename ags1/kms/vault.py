"""HashiCorp Vault (and OpenBao): master keys in a transit secrets engine.

A wrapped key is what ``transit/encrypt`` gives, Vault's own text ``vault:v1:<base64>``: whoever may
use the master key can open it with Vault's command line too. Speaks Vault's HTTP API through hvac's
paths, but reads the answers itself: hvac's exceptions hold whole answers, and requests' exceptions
the request with key and token in it, so none of them is ever in the chain of one of ours.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import re
import ssl
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from ..errors import (
    KmsAccessDeniedError,
    KmsConfigurationError,
    KmsError,
    KmsKeyDisabledError,
    KmsKeyNotFoundError,
    KmsUnavailableError,
    KmsUnwrapError,
)
from .bounded_http import bounded_adapter, refuse_compressed
from .client import GeneratedKey, KeyInfo, KeyVersion
from .plaintext_http import InsecureEndpointWarning, crosses_the_network, through_a_proxy
from .process import PerProcess
from .properties import Properties, missing_library

if TYPE_CHECKING:
    import requests

URL = "kms.vault.url"
NAMESPACE = "kms.vault.namespace"
MOUNT_PATH = "kms.vault.mount-path"
AUTH = "kms.vault.auth"
TOKEN = "kms.vault.token"
TOKEN_FILE = "kms.vault.token-file"
ROLE_ID = "kms.vault.role-id"
SECRET_ID = "kms.vault.secret-id"
SECRET_ID_FILE = "kms.vault.secret-id-file"
AUTH_MOUNT_PATH = "kms.vault.auth-mount-path"
ROLE = "kms.vault.role"
JWT_FILE = "kms.vault.jwt-file"
CA_CERT = "kms.vault.ca-cert"
VERIFY = "kms.vault.verify"

_PREFIX = "kms.vault."
_NAMES = tuple(
    name.removeprefix(_PREFIX)
    for name in (
        *(URL, NAMESPACE, MOUNT_PATH, CA_CERT, VERIFY),
        *(AUTH, TOKEN, TOKEN_FILE, ROLE_ID, SECRET_ID, SECRET_ID_FILE),
        *(AUTH_MOUNT_PATH, ROLE, JWT_FILE),
    )
)
_DEFAULT_JWT_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/token"
_KEY_TYPE = "aes256-gcm96"
# framework.GenericNameRegex of Vault, less what its router refuses: nothing in it, neither slashes
# nor a name of dots, turns the path into another one.
_KEY_ID = re.compile(r"(?!.*\.\.)\w(?:[\w.-]{0,510}\w)?", re.ASCII)
_KEY_ID_FORM = "letters, digits, _ and, in between, - and . can"
_MOUNT_PATH = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)*", re.ASCII)
_NAMESPACE = re.compile(r"[\x21-\x7e]{1,1000}")
_CREDENTIAL = re.compile(r"[\x21-\x7e]{1,65536}")
_MAX_CREDENTIAL_SIZE = 65_536
_RSA_SIZES = (256, 384, 512)
_WRAPPED_KEY = re.compile(r"vault:v[0-9]{1,10}:[A-Za-z0-9+/=]{1,65536}")
# What Vault's own Go client tries again. 412: an enterprise replica that is not up to date yet.
_TRANSIENT = frozenset((412, 429, 500, 502, 503, 504))
_FIRST_WAIT_S = 0.2
_MAX_WAIT_S = 10.0
_POOL_SIZE = 32


class InsecureVaultWarning(InsecureEndpointWarning):
    """Keys and tokens go to a Vault whose identity is not checked, or in the clear."""


class VaultKms:
    """A KMS client for Vault's transit engine; a key id is the name of a key there.

    ``wrap_key`` and ``generate_key`` need ``update`` on ``transit/encrypt/<key>`` and
    ``transit/datakey/plaintext/<key>``, ``unwrap_key`` on ``transit/decrypt/<key>``. With
    ``create`` on the first, Vault makes a missing key instead of refusing: so ``wrap_key`` asks
    for the key before, which needs ``read`` on ``transit/keys/<key>`` and is passed over without.

    Properties: ``kms.vault.url`` (else VAULT_ADDR), ``kms.vault.namespace`` (else VAULT_NAMESPACE),
    ``kms.vault.mount-path`` (transit), ``kms.vault.ca-cert``, a PEM file (else VAULT_CACERT), and
    ``kms.vault.verify`` = false, which warns with InsecureVaultWarning, as does a URL without TLS.
    Without TLS, a proxy is refused.

    ``kms.vault.auth`` is ``token`` (``kms.vault.token``, ``kms.vault.token-file``, VAULT_TOKEN or
    ``~/.vault-token``), ``approle`` (``kms.vault.role-id`` with ``kms.vault.secret-id`` or
    ``-file``) or ``kubernetes`` (``kms.vault.role``, ``kms.vault.jwt-file``), logging in at
    ``kms.vault.auth-mount-path``. A token that has expired is replaced by logging in, or reading
    the file, again. Tokens are left to expire, not revoked.

    Under an RSA key nothing is wrapped (KmsConfigurationError), only unwrapped: whoever has its
    public half could have wrapped it as well. An answer is read up to 4 MiB, and within twice the
    read time-out.

    Attempts are repeated as Vault's own client does it. A key made by an attempt whose answer was
    lost is never used; ``create_key`` and ``rotate_key``, which leave something behind, are only
    repeated where they did not reach the server. Redirects are not followed: token and key would
    go along.
    """

    accepts_foreign_keys: ClassVar[bool] = False
    wraps_with_public_key: ClassVar[bool] = False

    def __init__(self, properties: Mapping[str, str]) -> None:
        found = self._properties = Properties(properties)
        found.check_names(_PREFIX, _NAMES)
        self._url = _checked_url(
            found.get(URL)
            or os.environ.get("VAULT_ADDR")
            # For the error that names the property.
            or found.require(URL, hint="https://host:8200, or VAULT_ADDR in the environment")
        )
        self._namespace = found.get(NAMESPACE) or os.environ.get("VAULT_NAMESPACE") or None
        if self._namespace and not _NAMESPACE.fullmatch(self._namespace):
            raise KmsConfigurationError(f"the property {NAMESPACE!r} is not a namespace's path")
        self._mount_path = _checked_path(found, MOUNT_PATH, "transit")
        self._auth = found.choice(AUTH, default="token", choices=("token", "approle", "kubernetes"))
        self._auth_mount_path = _checked_path(found, AUTH_MOUNT_PATH, self._auth)
        for one, other in ((TOKEN, TOKEN_FILE), (SECRET_ID, SECRET_ID_FILE)):
            if found.get(one) and found.get(other):
                raise KmsConfigurationError(f"both {one!r} and {other!r} are given: one is meant")
        if self._auth == "approle":
            found.require(ROLE_ID)
        if self._auth == "kubernetes":
            found.require(ROLE)
        self._ca_cert = found.get(CA_CERT)
        self._verify = found.flag(VERIFY, default=True)
        if self._ca_cert and not self._verify:
            raise KmsConfigurationError(f"{CA_CERT!r} is given, but {VERIFY!r} is 'false'")
        self._timeout_s = (found.connect_timeout_ms / 1000, found.read_timeout_ms / 1000)
        self._max_attempts = found.max_attempts
        try:
            import hvac  # noqa: F401
        except ImportError as error:
            raise missing_library("vault", error) from None
        if not self._verify:
            warnings.warn(
                f"{VERIFY} is false: whoever answers at {self._url} gets the token and the keys",
                InsecureVaultWarning,
                stacklevel=2,
            )
        elif crosses_the_network(self._url):
            warnings.warn(
                f"{self._url} is not https: the token and the keys cross the network in the clear",
                InsecureVaultWarning,
                stacklevel=2,
            )
        self._connection: PerProcess[_Connection] = PerProcess(self._connect)

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        """Return Vault's ciphertext of ``key``. Raises as ``KmsClient`` says, and KmsError for a
        master key that derives its keys from a context, or cannot encrypt."""
        self._check_key_id(key_id)
        self._check_can_wrap(key_id)
        plaintext = base64.b64encode(key).decode()
        data = self._ask(
            lambda transit: transit.encrypt_data(
                name=key_id, plaintext=plaintext, mount_point=self._mount_path
            ),
            f"wrap a key under {key_id!r}",
            key_id,
            # An answer that echoes the request would show the key.
            quote=False,
        )
        return self._wrapped_key(data, key_id)

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        """Return the key in Vault's ciphertext. Raises as ``KmsClient`` says; KmsKeyDisabledError
        where the key's min_decryption_version has passed the version that wrapped."""
        self._check_key_id(key_id)
        ciphertext = _ciphertext(wrapped_key)
        data = self._ask(
            lambda transit: transit.decrypt_data(
                name=key_id, ciphertext=ciphertext, mount_point=self._mount_path
            ),
            f"unwrap a key with {key_id!r}",
            key_id,
            opens=True,
        )
        return self._plaintext(data)

    def rewrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        """Return the same key under the newest version of ``key_id``; it never leaves Vault."""
        self._check_key_id(key_id)
        ciphertext = _ciphertext(wrapped_key)
        data = self._ask(
            lambda transit: transit.rewrap_data(
                name=key_id, ciphertext=ciphertext, mount_point=self._mount_path
            ),
            f"rewrap a key with {key_id!r}",
            key_id,
            opens=True,
        )
        return self._wrapped_key(data, key_id)

    @property
    def supports_key_generation(self) -> bool:
        return True

    def generate_key(self, key_id: str, key_size: int) -> GeneratedKey:
        """Have Vault make a key of 16 or 32 bytes. Raises NotImplementedError for another size:
        Vault makes no AES-192 keys (wrap one instead)."""
        if key_size not in (16, 32):
            raise NotImplementedError(
                f"Vault makes keys of 16 or 32 bytes, not of {key_size}; wrap one"
            )
        self._check_key_id(key_id)
        data = self._ask(
            lambda transit: transit.generate_data_key(
                name=key_id, key_type="plaintext", bits=key_size * 8, mount_point=self._mount_path
            ),
            f"make a key under {key_id!r}",
            key_id,
        )
        key = self._plaintext(data)
        if len(key) != key_size:
            raise self._not_vault("a key of another size than asked for")
        return GeneratedKey(key, self._wrapped_key(data, key_id))

    def list_keys(self) -> Iterator[KeyInfo]:
        """Yield the mount's keys, by id, each as ``describe_key`` returns it."""
        answer = self._send(lambda transit: transit.list_keys(mount_point=self._mount_path))
        if answer.says_there_is_none:
            return
        names = self._data(answer, "list the keys").get("keys")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self._not_vault("a list of keys without names")
        for name in sorted(names):
            # One that another has deleted meanwhile is no error.
            with contextlib.suppress(KmsKeyNotFoundError):
                yield self.describe_key(name)

    def describe_key(self, key_id: str) -> KeyInfo:
        """Return a key's type and versions, disabled below its min_decryption_version."""
        self._check_key_id(key_id)
        data = self._data(self._read(key_id), f"read the key {key_id!r}", key_id)
        info = None
        with contextlib.suppress(ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            info = _key_info(key_id, data)
        if info is None:
            raise self._not_vault("a key without type or versions")
        return info

    def create_key(self, key_id: str) -> KeyInfo:
        """Make an AES-256-GCM key that Vault does not export. An existing one is kept: KmsError."""
        if not _KEY_ID.fullmatch(key_id):
            raise KmsError(f"{key_id!r} cannot name a key in Vault: {_KEY_ID_FORM}")
        # Vault itself takes a second creation for a success.
        existing = self._read(key_id)
        if existing.ok:
            raise KmsError(f"{self._place} has a key {key_id!r} already; it was kept")
        doing = f"make the key {key_id!r}"
        if not existing.says_there_is_none:
            self._data(existing, doing, key_id)
        self._ask(
            lambda transit: transit.create_key(
                name=key_id,
                key_type=_KEY_TYPE,
                derived=False,
                convergent_encryption=False,
                exportable=False,
                allow_plaintext_backup=False,
                mount_point=self._mount_path,
            ),
            doing,
            key_id,
        )
        return self.describe_key(key_id)

    def rotate_key(self, key_id: str) -> KeyInfo:
        """Make a new version of a key, which wraps from now on; older ones still unwrap."""
        self._check_key_id(key_id)
        self._ask(
            lambda transit: transit.rotate_key(name=key_id, mount_point=self._mount_path),
            f"rotate the key {key_id!r}",
            key_id,
        )
        return self.describe_key(key_id)

    def close(self) -> None:
        """Give back the connections and forget the token. Used again, the client logs in again."""
        if (connection := self._connection.take()) is not None:
            connection.session.close()

    def __repr__(self) -> str:
        namespace = f", namespace={self._namespace!r}" if self._namespace else ""
        return (
            f"VaultKms({self._url!r}, mount_path={self._mount_path!r}{namespace}, "
            f"auth={self._auth!r})"
        )

    def __reduce__(self) -> tuple[type[VaultKms], tuple[dict[str, str]]]:
        return VaultKms, (self._properties.to_pickle(),)

    @property
    def _place(self) -> str:
        namespace = f"{self._namespace.strip('/')}/" if self._namespace else ""
        return f"Vault's {namespace}{self._mount_path} at {self._url}"

    def _check_key_id(self, key_id: str) -> None:
        if not _KEY_ID.fullmatch(key_id):
            raise KmsKeyNotFoundError(
                f"{self._place} has no key {key_id!r}: no key can be named so ({_KEY_ID_FORM})"
            )

    def _check_can_wrap(self, key_id: str) -> None:
        answer = self._read(key_id)
        if answer.status == 403:
            return  # a policy for wrapping alone, or a bad token, which the next call will tell
        data = self._data(answer, f"read the key {key_id!r}", key_id)
        if str(data.get("type")).startswith("rsa-"):
            raise self._asymmetric(key_id)
        if data.get("derived"):
            raise self._derived(key_id)
        if data.get("supports_encryption") is False:
            raise KmsError(f"the key {key_id!r} in {self._place} cannot encrypt: it is for signing")

    def _read(self, key_id: str) -> _Answer:
        return self._send(lambda transit: transit.read_key(key_id, mount_point=self._mount_path))

    def _wrapped_key(self, data: Mapping[str, Any], key_id: str) -> bytes:
        ciphertext = data.get("ciphertext")
        if not isinstance(ciphertext, str) or not _WRAPPED_KEY.fullmatch(ciphertext):
            raise self._not_vault("no ciphertext")
        # The key's type may not be ours to read; an AES ciphertext has 28 bytes more than the key.
        if len(ciphertext.rpartition(":")[2].rstrip("=")) * 6 // 8 in _RSA_SIZES:
            raise self._asymmetric(key_id)
        return ciphertext.encode()

    def _plaintext(self, data: Mapping[str, Any]) -> bytes:
        key = None
        # Raised outside: the decoder's exception is not worth a look at what it holds.
        with contextlib.suppress(KeyError, TypeError, ValueError):
            key = base64.b64decode(data["plaintext"], validate=True)
        if key is None:
            raise self._not_vault("no plaintext")
        return key

    def _connect(self) -> _Connection:
        import requests.utils

        if self._url.startswith("http:"):
            proxies = requests.utils.get_environ_proxies(self._url)
            if requests.utils.select_proxy(self._url, proxies):
                raise through_a_proxy(f"Vault at {self._url}")
        return _Connection(
            session=_session(self._max_attempts, f"{self._url}/v1/", self._mount_path),
            make_client=self._make_client,
            log_in=self._log_in,
        )

    def _make_client(self, session: requests.Session, token: str) -> Any:
        import hvac

        verify: bool | str = self._verify
        if verify:
            # hvac would look at these when it is imported.
            environment = os.environ.get("VAULT_CACERT") or os.environ.get("VAULT_CAPATH")
            verify = self._ca_cert or environment or True
        if isinstance(verify, str):
            _check_ca_cert(verify)
        # Both: hvac prefers the session's, requests the call's.
        session.verify = verify
        return hvac.Client(
            url=self._url,
            token=token,
            verify=verify,
            timeout=self._timeout_s,
            allow_redirects=False,
            session=session,
            namespace=self._namespace,
            ignore_exceptions=True,
            strict_http=True,
        )

    def _log_in(self, session: requests.Session) -> str:
        """Return a token. Raises KmsAccessDeniedError and what any call raises."""
        found = self._properties
        if self._auth == "token":
            return self._found_token()
        # A client of its own, which sends no old token along.
        methods = self._make_client(session, "").auth
        if self._auth == "approle":
            role_id, secret_id = found.require(ROLE_ID), found.get(SECRET_ID)
            if path := found.get(SECRET_ID_FILE):
                secret_id = _read_credential(path, SECRET_ID_FILE)
            answer = self._call(
                lambda: methods.approle.login(
                    role_id, secret_id, use_token=False, mount_point=self._auth_mount_path
                )
            )
        else:
            jwt = _read_credential(found.get(JWT_FILE) or _DEFAULT_JWT_FILE, JWT_FILE)
            answer = self._call(
                lambda: methods.kubernetes.login(
                    found.require(ROLE), jwt, use_token=False, mount_point=self._auth_mount_path
                )
            )
        # Some versions of Vault say 500 to a wrong secret id.
        if answer.status in (400, 401, 403) or "invalid secret id" in answer.errors:
            raise KmsAccessDeniedError(
                f"Vault at {self._url} refused the login by {self._auth}: the role or credential "
                f"is wrong or has expired, or nothing is mounted at auth/{self._auth_mount_path} "
                f"({AUTH_MOUNT_PATH}) (HTTP {answer.status})"
            )
        if not answer.ok:
            raise self._failure(answer, f"log in by {self._auth} at auth/{self._auth_mount_path}")
        auth = answer.body.get("auth")
        token = auth.get("client_token") if isinstance(auth, dict) else None
        if not isinstance(token, str) or not _CREDENTIAL.fullmatch(token):
            raise self._not_vault("a login without a token")
        return token

    def _found_token(self) -> str:
        if path := self._properties.get(TOKEN_FILE):
            return _read_credential(path, TOKEN_FILE)
        token, source = self._properties.get(TOKEN), f"the property {TOKEN!r}"
        if token is None:
            token, source = os.environ.get("VAULT_TOKEN"), "VAULT_TOKEN"
        if not token:
            path = os.path.join(os.path.expanduser("~"), ".vault-token")
            if os.path.exists(path):
                return _read_credential(path, path)
            raise KmsAccessDeniedError(
                f"there is no token for Vault: {TOKEN_FILE}, {TOKEN}, VAULT_TOKEN or `vault login` "
                f"gives one, or {AUTH} is approle or kubernetes"
            )
        if not _CREDENTIAL.fullmatch(token.strip()):
            raise KmsConfigurationError(f"{source} is not a token of Vault")
        return token.strip()

    def _ask(
        self,
        call: Callable[[Any], Any],
        doing: str,
        key_id: str,
        *,
        opens: bool = False,
        quote: bool = True,
    ) -> Mapping[str, Any]:
        return self._data(self._send(call), doing, key_id, opens=opens, quote=quote)

    def _send(self, call: Callable[[Any], Any]) -> _Answer:
        """Call a method of hvac's transit engine, with another token if the one at hand expired."""
        connection = self._connection.get()
        login = connection.login()
        answer = self._call(lambda: call(login.client.secrets.transit))
        if answer.status == 403:
            renewed = connection.renewed_login(login, self._has_expired)
            if renewed is not None:
                answer = self._call(lambda: call(renewed.client.secrets.transit))
        return answer

    def _has_expired(self, login: _Login) -> bool:
        """Whether a 403 is the token's fault rather than the policy's, for which Vault has the same
        words; and whether there may be another token."""
        if self._auth != "token":
            return self._call(login.client.auth.token.lookup_self).status == 403
        return self._found_token() != login.token

    def _call(self, call: Callable[[], Any]) -> _Answer:
        import urllib3.exceptions

        failure: KmsError | None = None
        try:
            result = call()
        # requests' exceptions are OSErrors; the rest is what libraries below let through.
        except (OSError, ValueError, RecursionError, urllib3.exceptions.HTTPError) as error:
            failure = self._unreachable(error)
        if failure is not None:
            # Outside of the handler, so that the request is not in the context.
            raise failure
        return _answer(result)

    def _unreachable(self, error: Exception) -> KmsError:
        import requests

        where = f"Vault at {self._url}"
        attempts = f"in at most {self._max_attempts} attempts"
        if isinstance(error, requests.exceptions.SSLError) and "CERTIFICATE_VERIFY" in str(error):
            return KmsConfigurationError(
                f"{where}: its certificate is not trusted; {CA_CERT} names a file with the "
                "certificate of who signed it"
            )
        if isinstance(error, requests.exceptions.ProxyError):
            return KmsUnavailableError(f"{where}: the proxy lets nothing through, {attempts}")
        if isinstance(error, requests.exceptions.Timeout):
            return KmsUnavailableError(f"{where} did not answer in time, {attempts}")
        if isinstance(error, requests.exceptions.RequestException) and isinstance(
            error, ValueError
        ):
            return KmsConfigurationError(f"{where}: not an address ({type(error).__name__})")
        if isinstance(error, RecursionError):
            return self._not_vault("JSON without end")
        return KmsUnavailableError(f"{where} cannot be reached: {_cause(error)}, {attempts}")

    def _data(
        self,
        answer: _Answer,
        doing: str,
        key_id: str | None = None,
        *,
        opens: bool = False,
        quote: bool = True,
    ) -> Mapping[str, Any]:
        if not answer.ok:
            raise self._failure(answer, doing, key_id, opens=opens, quote=quote)
        data = answer.body.get("data")
        return data if isinstance(data, dict) else {}

    def _failure(
        self,
        answer: _Answer,
        doing: str,
        key_id: str | None = None,
        *,
        opens: bool = False,
        quote: bool = False,
    ) -> KmsError:
        """Return the error for an answer. Vault tells most failures apart by its text alone; that
        is quoted only where neither the request nor, hence, an echo of it holds a secret."""
        status, said = answer.status, " ".join(answer.errors)
        place = self._place
        if status in _TRANSIENT and "failed to RSA decrypt" not in said:
            why = "is sealed" if "is sealed" in said else "is not able to answer"
            why = "answers too many requests" if status == 429 else why
            return KmsUnavailableError(
                f"cannot {doing}: Vault at {self._url} {why} (HTTP {status}, in at most "
                f"{self._max_attempts} attempts)"
            )
        if status == 501:
            return KmsUnavailableError(f"cannot {doing}: Vault at {self._url} is not initialized")
        if 300 <= status < 400:
            return KmsConfigurationError(
                f"cannot {doing}: Vault at {self._url} sends us to another address, which is not "
                f"followed: {URL} is to be the address of the active node, or of a load balancer"
            )
        if not answer.from_vault:
            return self._not_vault(f"HTTP {status} and no JSON of Vault's")
        if status in (401, 403):
            return KmsAccessDeniedError(
                f"Vault at {self._url} refuses to {doing}: the token is wrong or has expired, or "
                f"its policy does not allow it on {self._mount_path}/ (HTTP {status})"
            )
        if "no handler for route" in said:
            return KmsConfigurationError(
                f"cannot {doing}: Vault at {self._url} has nothing mounted there: see {MOUNT_PATH}"
                f", {AUTH_MOUNT_PATH} and {NAMESPACE}"
            )
        if key_id is not None and (answer.says_there_is_none or "key not found" in said):
            return KmsKeyNotFoundError(f"{place} has no key {key_id!r}")
        if key_id is not None and "key derivation" in said:
            return self._derived(key_id)
        if opens:
            if "disallowed by policy" in said:
                return KmsKeyDisabledError(
                    f"the version of the key {key_id!r} that wrapped this key is not in use any "
                    f"more in {place}: its min_decryption_version is higher"
                )
            return KmsUnwrapError(
                f"the key {key_id!r} in {place} does not open the wrapped key: another key wrapped "
                f"it, or it was changed ({self._quoted(answer, True)})"
            )
        return KmsError(f"cannot {doing} in {place}: {self._quoted(answer, quote)}")

    def _quoted(self, answer: _Answer, quote: bool) -> str:
        said = " ".join("; ".join(answer.errors).split())
        # The token was in the request, too.
        if not quote or not said.isprintable() or re.search(r"\bhv[sbr]\.|\b[sbr]\.\w{20}", said):
            said = ""
        return f"HTTP {answer.status}{said and ': '}{said[:300]}"

    def _asymmetric(self, key_id: str) -> KmsConfigurationError:
        return KmsConfigurationError(
            f"the key {key_id!r} in {self._place} is an RSA key, which does not wrap here: whoever "
            f"has its public half can wrap as well; make one of type {_KEY_TYPE}"
        )

    def _derived(self, key_id: str) -> KmsError:
        return KmsError(
            f"the key {key_id!r} in {self._place} derives its keys from a context, which is not "
            "supported: make one with derived=false"
        )

    def _not_vault(self, what: str) -> KmsError:
        return KmsError(
            f"{self._url} does not answer as Vault does ({what}): is something else there, or a "
            "proxy in between?"
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    """``body`` and ``errors`` are empty where the answer has none, ``from_vault`` says whether it
    had the form of one of Vault's."""

    status: int
    body: Mapping[str, Any] = field(repr=False)
    errors: tuple[str, ...] = field(repr=False)
    from_vault: bool

    @property
    def ok(self) -> bool:
        return self.status in (200, 204) and self.from_vault

    @property
    def says_there_is_none(self) -> bool:
        """An empty 404 is a missing entry; one with errors a missing route."""
        return self.status == 404 and self.from_vault and not self.errors


@dataclass(frozen=True, slots=True)
class _Login:
    token: str = field(repr=False)
    client: Any = field(repr=False)


class _Connection:
    """One process's HTTP session, and the token in use.

    Threads share the session. requests promises nothing about that, but what it changes in a
    session while asking is only the cookies, which are refused here; the pools of urllib3 are made
    for threads. hvac keeps the token in its client: so a new token gets a new client, and no
    thread's token changes under it.
    """

    def __init__(
        self,
        session: requests.Session,
        make_client: Callable[[requests.Session, str], Any],
        log_in: Callable[[requests.Session], str],
    ) -> None:
        self.session = session
        self._make_client = make_client
        self._log_in = log_in
        self._lock = threading.Lock()
        self._login: _Login | None = None

    def login(self) -> _Login:
        login = self._login
        if login is None:
            with self._lock:
                login = self._login or self._new_login()
        return login

    def renewed_login(self, used: _Login, has_expired: Callable[[_Login], bool]) -> _Login | None:
        """Return another login than ``used``, None when that is as good as it gets."""
        with self._lock:
            if self._login is not used and self._login is not None:
                return self._login  # another thread was first
            return self._new_login() if has_expired(used) else None

    def _new_login(self) -> _Login:
        token = self._log_in(self.session)
        login = self._login = _Login(token, self._make_client(self.session, token))
        return login


def _session(max_attempts: int, api_url: str, mount_path: str) -> requests.Session:
    """Return a session that tries again: of the calls that manage keys only those that read."""
    import http.cookiejar

    import requests
    import requests.adapters
    import urllib3
    import urllib3.exceptions

    class Retry(urllib3.Retry):
        def get_retry_after(self, response: Any) -> float | None:
            try:
                wait_s = super().get_retry_after(response)
            except urllib3.exceptions.InvalidHeader:
                return None
            # A server does not get to stop us for an hour.
            return None if wait_s is None else min(wait_s, _MAX_WAIT_S)

        def get_backoff_time(self) -> float:
            wait_s = min(_FIRST_WAIT_S * 2.0 ** min(len(self.history) - 1, 16), _MAX_WAIT_S)
            # Spread, or all workers that failed together come back together.
            return random.uniform(wait_s / 2, wait_s)

    def adapter(
        methods: frozenset[str] | None = None, statuses: frozenset[int] = _TRANSIENT
    ) -> requests.adapters.HTTPAdapter:
        retry = Retry(
            total=max_attempts - 1,
            allowed_methods=methods,
            status_forcelist=statuses,
            raise_on_status=False,
        )
        return bounded_adapter(pool_connections=4, pool_maxsize=_POOL_SIZE, max_retries=retry)

    session = requests.Session()
    refuse_compressed(session)
    if api_url.startswith("http:"):
        session.trust_env = False  # no proxy, whatever the environment comes to say
    session.mount(api_url, adapter())
    session.mount(f"{api_url}{mount_path}/keys/", adapter(methods=frozenset(["GET"])))
    # A wrong secret id may be a 500, and Vault locks out who tries too often.
    session.mount(f"{api_url}auth/", adapter(statuses=_TRANSIENT - {500}))
    session.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
    # Otherwise a password from ~/.netrc is sent along.
    session.auth = lambda request: request
    return session


def _answer(result: Any) -> _Answer:
    """Return what hvac gave: the JSON of a 200, requests' Response of anything else."""
    body: Any = result
    status = 200
    if hasattr(result, "status_code"):
        status, body = result.status_code, None
        if not result.content:
            return _Answer(status, {}, (), status == 204)
        with contextlib.suppress(ValueError, RecursionError):
            body = json.loads(result.content)
    if not isinstance(body, dict):
        return _Answer(status, {}, (), False)
    errors = body.get("errors")
    if isinstance(errors, list) and all(isinstance(error, str) for error in errors):
        return _Answer(status, body, tuple(errors), True)
    return _Answer(status, body, (), status == 200)


def _cause(error: BaseException) -> str:
    """Return why a connection failed, in words that hold no text of anybody else's."""
    reason: Any = error
    for _ in range(8):
        if isinstance(reason, OSError) and reason.errno and reason.errno > 0:
            return os.strerror(reason.errno)
        if type(reason).__name__ == "NameResolutionError":
            return "its name is not known"
        inner = reason.__cause__ or getattr(reason, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((arg for arg in reason.args if isinstance(arg, BaseException)), None)
        inner = inner or reason.__context__
        if inner is None:
            break
        reason = inner
    return type(reason).__name__


def _ciphertext(wrapped_key: bytes) -> str:
    text = bytes(wrapped_key).decode("latin-1")
    if not _WRAPPED_KEY.fullmatch(text):
        raise KmsUnwrapError("the wrapped key is damaged, or was not wrapped by Vault")
    return text


def _key_info(key_id: str, data: Mapping[str, Any]) -> KeyInfo:
    algorithm, latest = data["type"], data["latest_version"]
    oldest_usable = data.get("min_decryption_version", 1)
    # Vault leaves out the versions it has put aside, and those before are trimmed for good.
    numbers = {int(number) for number in data["keys"]}
    first = max(data.get("min_available_version", 0), 1)
    numbers.update(range(max(first, oldest_usable - 10_000), oldest_usable))
    if not isinstance(algorithm, str) or not isinstance(latest, int) or latest not in numbers:
        raise ValueError
    versions = []
    for number in sorted(numbers):
        entry = data["keys"].get(str(number))
        asymmetric = entry if isinstance(entry, dict) else {}
        created = asymmetric.get("creation_time") if asymmetric else entry
        versions.append(
            KeyVersion(
                str(number),
                created_ms=_created_ms(created),
                enabled=number >= oldest_usable,
                public_key=asymmetric.get("public_key") or None,
            )
        )
    return KeyInfo(key_id, algorithm, current_version=str(latest), versions=tuple(versions))


def _created_ms(created: Any) -> int | None:
    """Return epoch milliseconds of Vault's two forms: seconds, and RFC 3339 with nanoseconds."""
    if isinstance(created, int):
        return created * 1000
    if not isinstance(created, str):
        return None
    second = re.sub(r"\.[0-9]+", "", created).replace("Z", "+00:00")
    return int(datetime.fromisoformat(second).timestamp()) * 1000


def _checked_url(url: str) -> str:
    # Messages leave out the value, which may hold a password.
    name = f"the property {URL!r} (or VAULT_ADDR)"
    parts, port = None, -1
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        port = 0 if parts.port is None else parts.port
    if parts is not None and (parts.username is not None or parts.password is not None):
        raise KmsConfigurationError(f"{name} holds a password, which is no way to log in to Vault")
    if (
        parts is None
        or port < 0
        or parts.scheme not in ("http", "https")
        or not parts.hostname
        or not re.fullmatch(r"[\x21-\x7e]+", url)
        or not {"?", "#"}.isdisjoint(url)
    ):
        raise KmsConfigurationError(f"{name} is not of the form https://host:8200")
    return url.rstrip("/")


def _checked_path(properties: Properties, name: str, default: str) -> str:
    path = (properties.get(name) or default).strip("/")
    if not _MOUNT_PATH.fullmatch(path):
        raise KmsConfigurationError(f"the property {name!r} is not the path of a mount")
    return path


def _check_ca_cert(path: str) -> None:
    folder = os.path.isdir(path)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(None if folder else path, path if folder else None)
    except OSError as error:
        raise KmsConfigurationError(
            f"there are no certificates to read in {path} ({CA_CERT} or VAULT_CACERT): "
            f"{error.strerror}"
        ) from None


def _read_credential(path: str, name: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_CREDENTIAL_SIZE + 1)
    except OSError as error:
        raise KmsConfigurationError(f"cannot read {path} ({name}): {error.strerror}") from None
    text = data.decode("latin-1").strip()
    if not _CREDENTIAL.fullmatch(text):
        raise KmsConfigurationError(f"there is no credential in {path} ({name})")
    return text
