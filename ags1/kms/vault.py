"""HashiCorp Vault (and OpenBao): master keys in a transit secrets engine.

A wrapped key is what ``transit/encrypt`` returns, Vault's own text ``vault:v1:<base64>``. Whoever
may use the master key can also open it with Vault's command line. The client uses Vault's HTTP API
over the library requests, whose exceptions contain the request with key and token. So none of them
is chained to an exception of ours.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
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
from ..host.process import Lock
from . import endpoints
from .causes import ENDED, cause_of
from .client import GeneratedKey, ServiceClient
from .properties import Properties, warn_user
from .secret import Secret, discreet

if TYPE_CHECKING:
    import requests

URL = "kms.vault.url"
NAMESPACE = "kms.vault.namespace"
MOUNT_PATH = "kms.vault.mount-path"
CA_CERT = "kms.vault.ca-cert"
CLIENT_CERT = "kms.vault.client-cert"
CLIENT_KEY = "kms.vault.client-key"
VERIFY = "kms.vault.verify"
AUTH = "kms.vault.auth"
TOKEN = "kms.vault.token"
TOKEN_FILE = "kms.vault.token-file"
ROLE_ID = "kms.vault.role-id"
SECRET_ID = "kms.vault.secret-id"
SECRET_ID_FILE = "kms.vault.secret-id-file"
AUTH_MOUNT_PATH = "kms.vault.auth-mount-path"
ROLE = "kms.vault.role"
JWT_FILE = "kms.vault.jwt-file"
_PROPERTIES = (
    *(URL, NAMESPACE, MOUNT_PATH, CA_CERT, CLIENT_CERT, CLIENT_KEY, VERIFY, AUTH, TOKEN),
    *(TOKEN_FILE, ROLE_ID, SECRET_ID, SECRET_ID_FILE, AUTH_MOUNT_PATH, ROLE, JWT_FILE),
)

# Variables of Vault's own client that change where or how it connects, and are not obeyed here.
_IGNORED_VARIABLES = (
    *("VAULT_AGENT_ADDR", "VAULT_CACERT_BYTES", "VAULT_CLIENT_TIMEOUT", "VAULT_HTTP_PROXY"),
    *("VAULT_MAX_RETRIES", "VAULT_PROXY_ADDR", "VAULT_SKIP_VERIFY", "VAULT_SRV_LOOKUP"),
    *("VAULT_TLS_SERVER_NAME", "VAULT_WRAP_TTL"),
)

_DEFAULT_JWT_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/token"
_KEY_TYPE = "aes256-gcm96"
# framework.GenericNameRegex of Vault, without the names that Vault's router refuses. It excludes
# slashes and names of dots, so that a name cannot change the path of a request.
_KEY_ID = re.compile(r"(?!.*\.\.)\w(?:[\w.-]{0,510}\w)?", re.ASCII)
_KEY_ID_FORM = "letters, digits and _, and - and . except at its ends"
_MOUNT_PATH = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)*", re.ASCII)
_NAMESPACE = re.compile(r"[\x21-\x7e]{1,1000}")
_CREDENTIAL = re.compile(r"[\x21-\x7e]{1,65536}")
_MAX_CREDENTIAL_SIZE = 65_536
_RSA_SIZES = (256, 384, 512)
_WRAPPED_KEY = re.compile(r"vault:v[0-9]{1,10}:[A-Za-z0-9+/=]{1,65536}")
# Vault's own Go client tries again after these. 412: an enterprise replica is not yet up to date.
_TRANSIENT = frozenset((412, 429, 500, 502, 503, 504))
_FIRST_WAIT_S = 0.2
_MAX_WAIT_S = 10.0
_POOL_SIZE = 32
_MAX_ANSWER_SIZE = 4 << 20
# Threads share a token, whose uses may be few (token_num_uses). So a call may need several logins,
# but no more after so many tokens that served nobody.
_MAX_USELESS_TOKENS = 8


class VaultKms(ServiceClient["_Connection"]):
    """A KMS client for Vault's transit engine. A key ID is the name of a key there.

    ``wrap_key``, ``generate_key`` and ``unwrap_key`` need ``update`` on ``transit/encrypt/<key>``,
    ``transit/datakey/plaintext/<key>`` and ``transit/decrypt/<key>``. If the caller has ``create``
    on the first, Vault makes a missing key instead of refusing. So ``wrap_key`` first asks whether
    the key exists, if the caller has ``read`` on ``transit/keys/<key>``.

    Properties: ``kms.vault.url`` (otherwise VAULT_ADDR), ``kms.vault.namespace`` (otherwise
    VAULT_NAMESPACE), ``kms.vault.mount-path`` (transit), ``kms.vault.ca-cert``, a PEM file
    (otherwise VAULT_CACERT), ``kms.vault.client-cert`` and ``kms.vault.client-key``, PEM files for
    a Vault that demands a client certificate (otherwise VAULT_CLIENT_CERT and VAULT_CLIENT_KEY),
    and ``kms.vault.verify`` = false, which warns with InsecureEndpointWarning. ``http`` is for
    tests. It is refused through a proxy, and to another machine unless
    ``kms.allow-plaintext-http`` is true. Other variables of Vault's own client are not obeyed; a
    warning names them.

    ``kms.vault.auth`` is ``token`` (``kms.vault.token``, ``kms.vault.token-file``, VAULT_TOKEN or
    ``~/.vault-token``), ``approle`` (``kms.vault.role-id`` with ``kms.vault.secret-id`` or
    ``-file``) or ``kubernetes`` (``kms.vault.role``, ``kms.vault.jwt-file``). The last two log in
    at ``kms.vault.auth-mount-path``. If a token has expired, the client logs in or reads the file
    again. Tokens are not revoked; they expire.
    An RSA key unwraps but does not wrap (KmsConfigurationError), because whoever has its public
    half could wrap too. Attempts are repeated as Vault's own client does. Redirects are not
    followed, because token and key would be sent with them. An answer is read up to 4 MiB.
    """

    accepts_foreign_keys = False
    wraps_with_public_key = False
    supports_key_generation = True
    _extra = "vault"
    _libraries = ("requests",)

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        given = self._properties
        given.check_names("kms.vault.", _PROPERTIES)
        self._url = endpoints.checked_url(
            f"the property {URL!r} (or VAULT_ADDR)",
            given.get(URL)
            or os.environ.get("VAULT_ADDR")
            # Called for its error, which names the property.
            or given.require(URL, hint="https://host:8200, or VAULT_ADDR in the environment"),
            allowed=endpoints.is_allowed(given),
            form="https://host:8200/path",
        )
        self._namespace = given.get(NAMESPACE) or os.environ.get("VAULT_NAMESPACE") or None
        if self._namespace and not _NAMESPACE.fullmatch(self._namespace):
            raise KmsConfigurationError(f"the property {NAMESPACE!r} is not a namespace's path")
        self._mount_path = _checked_path(given, MOUNT_PATH, "transit")
        self._auth = given.choice(AUTH, default="token", choices=("token", "approle", "kubernetes"))
        self._auth_mount_path = _checked_path(given, AUTH_MOUNT_PATH, self._auth)
        for one, other in ((TOKEN, TOKEN_FILE), (SECRET_ID, SECRET_ID_FILE)):
            if given.get(one) and given.get(other):
                raise KmsConfigurationError(f"both {one!r} and {other!r} are given: give one")
        if self._auth == "approle":
            given.require(ROLE_ID)
        if self._auth == "kubernetes":
            given.require(ROLE)
        self._ca_cert = given.get(CA_CERT)
        cert = given.get(CLIENT_CERT) or os.environ.get("VAULT_CLIENT_CERT")
        key = given.get(CLIENT_KEY) or os.environ.get("VAULT_CLIENT_KEY")
        if key and not cert:
            raise KmsConfigurationError(f"{CLIENT_KEY!r} is given without {CLIENT_CERT!r}")
        self._client_cert = (cert, key or cert) if cert else None
        self._verify = given.flag(VERIFY, default=True)
        if self._ca_cert and not self._verify:
            raise KmsConfigurationError(f"{CA_CERT!r} is given, but {VERIFY!r} is 'false'")
        if not self._verify:
            warn_user(
                f"{VERIFY} is false: whoever answers at {self._url} gets the token and the keys",
                endpoints.InsecureEndpointWarning,
            )
        if ignored := [name for name in _IGNORED_VARIABLES if os.environ.get(name)]:
            warn_user(
                f"{', '.join(ignored)}: ags1 does not use this setting of Vault's own client; the "
                "properties kms.vault.… and kms.… say how it connects",
                UserWarning,
            )

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        """Return Vault's ciphertext of ``key``. Raises KmsError for a master key that derives its
        keys from a context, or cannot encrypt."""
        self._check_key_id(key_id)
        self._check_can_wrap(key_id)
        body = {"plaintext": base64.b64encode(key).decode()}
        # Do not quote the answer: it may repeat the request, with the key.
        data = self._ask("encrypt", key_id, body, f"wrap a key under {key_id!r}", quote=False)
        return self._wrapped_key(data, key_id)

    @discreet
    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        """Return the key in Vault's ciphertext. Raises KmsKeyDisabledError if the key's
        min_decryption_version is above the version that wrapped it."""
        self._check_key_id(key_id)
        body, doing = _ciphertext(wrapped_key), f"unwrap a key with {key_id!r}"
        return self._plaintext(self._ask("decrypt", key_id, body, doing))

    def newest_version(self, key_id: str) -> int | None:
        """Return the number of the version that wraps; None without ``read`` on the key."""
        self._check_key_id(key_id)
        answer = self._send("GET", f"{self._mount_path}/keys/{key_id}")
        version = answer.data.get("latest_version") if answer.ok else None
        return version if type(version) is int else None

    @discreet
    def generate_key(self, key_id: str, key_size: int) -> GeneratedKey:
        """Have Vault make a key of 16 or 32 bytes: it makes no AES-192 keys."""
        if key_size not in (16, 32):
            raise NotImplementedError(
                f"Vault makes keys of 16 or 32 bytes, not of {key_size}: make a key and wrap it"
            )
        self._check_key_id(key_id)
        data = self._ask(
            "datakey/plaintext", key_id, {"bits": key_size * 8}, f"make a key under {key_id!r}"
        )
        key = self._plaintext(data)
        if len(key) != key_size:
            raise self._not_vault("a key of another size than asked for")
        return GeneratedKey(key, self._wrapped_key(data, key_id))

    def close(self) -> None:
        """Close the connections and forget the token. If used again, the client logs in again."""
        if (connection := self._connection.take()) is not None:
            connection.session.close()

    def __repr__(self) -> str:
        namespace = f", namespace={self._namespace!r}" if self._namespace else ""
        return (
            f"VaultKms({self._url!r}, mount_path={self._mount_path!r}{namespace}, "
            f"auth={self._auth!r})"
        )

    @property
    def _where(self) -> str:
        namespace = f"{self._namespace.strip('/')}/" if self._namespace else ""
        return f"Vault's {namespace}{self._mount_path} at {self._url}"

    def _check_key_id(self, key_id: str) -> None:
        if not _KEY_ID.fullmatch(key_id):
            raise KmsKeyNotFoundError(
                f"{self._where} has no key {key_id!r}: a key's name has {_KEY_ID_FORM}"
            )

    def _check_can_wrap(self, key_id: str) -> None:
        # The policy may allow wrapping alone. If the token has expired, the next call renews it.
        answer = self._send("GET", f"{self._mount_path}/keys/{key_id}", renews=False)
        if answer.status == 403:
            return
        if not answer.ok:
            raise self._failure(answer, f"read the key {key_id!r}", key_id, quote=True)
        data = answer.data
        if str(data.get("type")).startswith("rsa-"):
            raise self._asymmetric(key_id)
        if data.get("derived"):
            raise self._derived(key_id)
        if data.get("supports_encryption") is False:
            raise KmsError(f"the key {key_id!r} in {self._where} cannot encrypt: it is for signing")

    def _wrapped_key(self, data: Mapping[str, Any], key_id: str) -> bytes:
        ciphertext = data.get("ciphertext")
        if not isinstance(ciphertext, str) or not _WRAPPED_KEY.fullmatch(ciphertext):
            raise self._not_vault("no ciphertext")
        # The policy may not let us read the key's type. So the size decides: an AES ciphertext has
        # 28 bytes more than the key.
        if len(ciphertext.rpartition(":")[2].rstrip("=")) * 6 // 8 in _RSA_SIZES:
            raise self._asymmetric(key_id)
        return ciphertext.encode()

    def _plaintext(self, data: Mapping[str, Any]) -> bytes:
        try:
            return base64.b64decode(data["plaintext"], validate=True)
        except (KeyError, TypeError, ValueError):
            raise self._not_vault("no plaintext") from None

    def _connect(self) -> _Connection:
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
                # A server must not make us wait for an hour.
                return None if wait_s is None else min(wait_s, _MAX_WAIT_S)

            def get_backoff_time(self) -> float:
                wait_s = min(_FIRST_WAIT_S * 2.0 ** min(len(self.history) - 1, 16), _MAX_WAIT_S)
                # The wait is random, so that workers that failed together do not retry together.
                return random.uniform(wait_s / 2, wait_s)

        endpoints.check_proxy(self._url)
        session = requests.Session()
        if self._verify:
            environment = os.environ.get("VAULT_CACERT") or os.environ.get("VAULT_CAPATH")
            session.verify = self._ca_cert or environment or True
            if session.verify is not True:
                _check_ca_cert(session.verify)
        else:
            session.verify = False
        if self._client_cert:
            _check_client_cert(*self._client_cert)
            session.cert = self._client_cert
        # Over plain http no proxy is used, even if the environment changes later.
        session.trust_env = self._url.startswith("https:")
        # A wrong secret ID may give a 500, and Vault locks out a user who tries too often.
        for path, statuses in (("", _TRANSIENT), ("auth/", _TRANSIENT - {500})):
            retry = Retry(self._max_attempts - 1, allowed_methods=None, raise_on_status=False)
            retry.status_forcelist = statuses
            adapter = requests.adapters.HTTPAdapter(pool_maxsize=_POOL_SIZE, max_retries=retry)
            session.mount(f"{self._url}/v1/{path}", adapter)
        session.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
        # Otherwise requests also sends a password from ~/.netrc.
        session.auth = lambda request: request
        # Ask for no compression: a small compressed answer could become a huge one.
        session.headers.update({"Accept-Encoding": "identity", "X-Vault-Request": "true"})
        if self._namespace:
            session.headers["X-Vault-Namespace"] = self._namespace
        return _Connection(session)

    def _log_in(self, session: requests.Session) -> str:
        """Return a token. Raises KmsAccessDeniedError and what any call raises."""
        given = self._properties
        if self._auth == "token":
            return self._configured_token()
        if self._auth == "approle":
            body = {"role_id": given.require(ROLE_ID)}
            secret_id = given.get(SECRET_ID)
            if path := given.get(SECRET_ID_FILE):
                secret_id = _read_credential(path, SECRET_ID_FILE)
            if secret_id:
                body["secret_id"] = secret_id
        else:
            jwt = _read_credential(given.get(JWT_FILE) or _DEFAULT_JWT_FILE, JWT_FILE)
            body = {"role": given.require(ROLE), "jwt": jwt}
        answer = self._call(session, "POST", f"auth/{self._auth_mount_path}/login", None, body)
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
        if isinstance(auth, dict) and auth.get("mfa_requirement"):
            raise KmsAccessDeniedError(
                f"Vault at {self._url} asks for a second factor (MFA) at the login by "
                f"{self._auth}, which a program cannot give: use a role without MFA"
            )
        if answer.body.get("wrap_info"):
            raise KmsConfigurationError(
                f"Vault at {self._url} wraps its answer to the login by {self._auth}, so that it "
                f"has no token: the role at auth/{self._auth_mount_path} must not wrap answers"
            )
        token = auth.get("client_token") if isinstance(auth, dict) else None
        if not isinstance(token, str) or not _CREDENTIAL.fullmatch(token):
            raise self._not_vault("a login without a token")
        return token

    def _configured_token(self) -> str:
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
        action: str,
        key_id: str,
        body: Mapping[str, object],
        doing: str,
        *,
        quote: bool = True,
    ) -> Mapping[str, Any]:
        answer = self._send("POST", f"{self._mount_path}/{action}/{key_id}", body)
        if not answer.ok:
            opens = action == "decrypt"
            raise self._failure(answer, doing, key_id, opens=opens, quote=quote)
        return answer.data

    @discreet
    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        renews: bool = True,
    ) -> _Answer:
        """Call Vault. If the token has expired, or its uses are used up, call again with another
        one, as often as there is one."""
        connection = self._connection.get()
        session = connection.session
        token = connection.token or self._renewed_token(connection, None)
        answer = first = self._call(session, method, path, token, body)
        # If the policy is the cause, another login may fail, because a secret id may be for one
        # login only. Then the first answer says more.
        useless = 0
        with contextlib.suppress(KmsAccessDeniedError):
            while answer.status == 403 and renews and useless < _MAX_USELESS_TOKENS:
                useless += token != connection.served
                token = self._renewed_token(connection, token)
                if not token:
                    break
                answer = self._call(session, method, path, token, body)
        if answer.status == 403:
            return first
        connection.served = token
        return answer

    def _renewed_token(self, connection: _Connection, used: str | None) -> str:
        """Return a token other than ``used``; an empty one if there is none."""
        connection.lock.check_not_mine()
        with connection.lock:
            if connection.token == used and (used is None or self._has_expired(connection, used)):
                connection.token = self._log_in(connection.session)
            return "" if connection.token == used else connection.token or ""

    def _has_expired(self, connection: _Connection, token: str) -> bool:
        """Whether a 403 is because of the token, and there may be another token. Vault's message is
        the same if the policy is the cause."""
        if self._auth == "token":
            return self._configured_token() != token
        return self._call(connection.session, "GET", "auth/token/lookup-self", token).status == 403

    def _call(
        self,
        session: requests.Session,
        method: str,
        path: str,
        token: str | None,
        body: Mapping[str, object] | None = None,
    ) -> _Answer:
        import urllib3.exceptions

        try:
            with session.request(
                method,
                f"{self._url}/v1/{path}",
                headers={"X-Vault-Token": token} if token else {},
                json=body,
                timeout=self._timeout_s,
                # If it is not given here, REQUESTS_CA_BUNDLE overrides the session's.
                verify=session.verify,
                allow_redirects=False,
                stream=True,
            ) as answer:
                content = answer.raw.read(_MAX_ANSWER_SIZE + 1)
        # requests' exceptions are OSErrors; the rest is what libraries below let through.
        except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
            raise self._unreachable(error) from None
        if len(content) > _MAX_ANSWER_SIZE:
            raise self._not_vault("more than 4 MiB")
        return _answer(answer.status_code, content)

    def _unreachable(self, error: Exception) -> KmsError:
        import requests

        where = f"Vault at {self._url}"
        attempts = f"in at most {self._max_attempts} attempts"
        cause = cause_of(
            error, f"{CA_CERT} names a file with the certificate of the authority that signed it"
        )
        if cause and cause.is_local:
            hint = f" ({CLIENT_CERT} names one)" if "client certificate" in cause.text else ""
            return KmsConfigurationError(f"{where}: {cause.text}{hint}")
        if isinstance(error, requests.exceptions.ProxyError):
            return KmsUnavailableError(f"{where}: the proxy refuses the connection, {attempts}")
        if isinstance(error, requests.exceptions.Timeout):
            return KmsUnavailableError(f"{where} did not answer in time, {attempts}")
        if isinstance(error, requests.exceptions.RequestException) and isinstance(
            error, ValueError
        ):
            return KmsConfigurationError(f"{where}: not an address ({type(error).__name__})")
        why = cause.text if cause else type(error).__name__
        if why == ENDED and self._url.startswith("https:") and not self._client_cert:
            why += f" (one that demands a client certificate does so: {CLIENT_CERT})"
        return KmsUnavailableError(f"{where} cannot be reached: {why}, {attempts}")

    def _failure(
        self,
        answer: _Answer,
        doing: str,
        key_id: str | None = None,
        *,
        opens: bool = False,
        quote: bool = False,
    ) -> KmsError:
        """Return the error for an answer. ``quote`` says whether to quote Vault's text, which may
        repeat the request. So it is true only if the request has no secret."""
        status, text = answer.status, " ".join(answer.errors)
        where = self._where
        if status in _TRANSIENT and "failed to RSA decrypt" not in text:
            why = "is sealed" if "is sealed" in text else "is not able to answer"
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
        if "no handler for route" in text:
            return KmsConfigurationError(
                f"cannot {doing}: Vault at {self._url} has nothing mounted there: see {MOUNT_PATH}"
                f", {AUTH_MOUNT_PATH} and {NAMESPACE}"
            )
        # An empty 404 is a missing entry, and one with errors a missing route.
        missing = (status == 404 and not answer.errors) or "key not found" in text
        if key_id is not None and missing:
            return KmsKeyNotFoundError(f"{where} has no key {key_id!r}")
        if key_id is not None and "key derivation" in text:
            return self._derived(key_id)
        if opens:
            if "disallowed by policy" in text:
                return KmsKeyDisabledError(
                    f"the version of the key {key_id!r} that wrapped this key is not in use any "
                    f"more in {where}: its min_decryption_version is higher"
                )
            return KmsUnwrapError(
                f"the key {key_id!r} in {where} does not open the wrapped key: another key wrapped "
                f"it, or it was changed ({self._quoted(answer, True)})"
            )
        return KmsError(f"cannot {doing} in {where}: {self._quoted(answer, quote)}")

    def _quoted(self, answer: _Answer, quote: bool) -> str:
        text = " ".join("; ".join(answer.errors).split())
        # The token was in the request, too.
        if not quote or not text.isprintable() or re.search(r"\bhv[sbr]\.|\b[sbr]\.\w{20}", text):
            text = ""
        return f"HTTP {answer.status}{text and ': '}{text[:300]}"

    def _asymmetric(self, key_id: str) -> KmsConfigurationError:
        return KmsConfigurationError(
            f"the key {key_id!r} in {self._where} is an RSA key, which does not wrap here, because "
            f"everybody who has its public half can wrap too: make a key of type {_KEY_TYPE}"
        )

    def _derived(self, key_id: str) -> KmsError:
        return KmsError(
            f"the key {key_id!r} in {self._where} derives its keys from a context, which is not "
            "supported: make one with derived=false"
        )

    def _not_vault(self, what: str) -> KmsError:
        return KmsError(
            f"{self._url} does not answer as Vault does ({what}): is it another server, or a proxy?"
        )


@dataclass(frozen=True, slots=True)
class _Answer(Secret):
    """``from_vault`` says whether the answer has the form of Vault's."""

    status: int
    body: Mapping[str, Any] = field(repr=False)
    errors: tuple[str, ...] = field(repr=False)
    from_vault: bool

    @property
    def ok(self) -> bool:
        return self.status in (200, 204) and self.from_vault

    @property
    def data(self) -> Mapping[str, Any]:
        data = self.body.get("data")
        return data if isinstance(data, dict) else {}


class _Connection(Secret):
    """One process's HTTP session and its token. A thread replaces the token under the lock. Threads
    share the session. All that requests changes in a session while asking is its cookies, which are
    refused here. The pools of urllib3 are made for threads."""

    __slots__ = ("lock", "served", "session", "token")

    def __init__(self, session: requests.Session) -> None:
        self.session = session
        self.lock = Lock()
        self.token: str | None = None
        # The token of the last call that Vault did not refuse.
        self.served: str | None = None


def _answer(status: int, content: bytes) -> _Answer:
    if not content:
        return _Answer(status, {}, (), status == 204)
    body: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(content)
    if not isinstance(body, dict):
        return _Answer(status, {}, (), False)
    errors = body.get("errors")
    if isinstance(errors, list) and all(isinstance(error, str) for error in errors):
        return _Answer(status, body, tuple(errors), True)
    return _Answer(status, body, (), status == 200)


def _ciphertext(wrapped_key: bytes) -> dict[str, object]:
    text = bytes(wrapped_key).decode("latin-1")
    if not _WRAPPED_KEY.fullmatch(text):
        raise KmsUnwrapError("the wrapped key is damaged, or was not wrapped by Vault")
    return {"ciphertext": text}


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
            f"cannot read certificates from {path} ({CA_CERT} or VAULT_CACERT): {error.strerror}"
        ) from None


def _check_client_cert(cert: str, key: str) -> None:
    try:
        # With the password, OpenSSL does not ask the terminal for the one of an encrypted key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password="")
    except ssl.SSLError:
        raise KmsConfigurationError(
            f"{cert} and {key} ({CLIENT_CERT} and {CLIENT_KEY}) are not a certificate and its "
            "unencrypted private key, in PEM"
        ) from None
    except OSError as error:
        raise KmsConfigurationError(
            f"cannot read {cert} and {key} ({CLIENT_CERT} and {CLIENT_KEY}): {error.strerror}"
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
