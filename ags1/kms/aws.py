"""A client for AWS KMS over boto3. It calls KMS as Java's ``AwsKeyManagementClient`` does: Encrypt
and Decrypt with the configured algorithm and no encryption context. So each of them reads what the
other wrapped. Properties follow Java's ``AwsProperties``, ``AwsClientProperties``,
``HttpClientProperties`` and ``AssumeRoleAwsClientFactory``, and PyIceberg's names of credentials.
What the SDK logs while it works for us is hidden, because it may have keys and credentials."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import os
import re
import types
import uuid
from collections.abc import Callable, Mapping
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
from .causes import below
from .client import GeneratedKey, SdkClient, unasked, unreadable
from .properties import Properties
from .secret import discreet

SYMMETRIC_DEFAULT = "SYMMETRIC_DEFAULT"
_ALGORITHMS = (SYMMETRIC_DEFAULT, "RSAES_OAEP_SHA_1", "RSAES_OAEP_SHA_256", "SM2PKE")
_DATA_KEY_SPECS = ("AES_256", "AES_128")
_HTTP_CLIENTS = ("apache", "urlconnection")
FORMER_KEYS = "kms.aws.former-keys"

# KMS's own limits, in bytes and characters.
_MAX_PLAINTEXT_SIZE = 4096
_MAX_WRAPPED_SIZE = 6144
_MAX_GENERATED_SIZE = 1024
_MAX_KEY_ID_LENGTH = 2048

_UUID = re.compile(r"(mrk-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32}", re.I)
_KEY_ARN = re.compile(r"arn:[a-z0-9-]+:kms:[a-z0-9-]+:\d{12}:key/[\w-]{1,64}", re.ASCII)
# The replicas of a multi-Region key have the same ID, account and key material.
_MULTI_REGION_ARN = re.compile(
    r"(arn:[a-z0-9-]+:kms:)[a-z0-9-]+(:\d{12}:key/mrk-[0-9a-f-]{32,36})", re.ASCII
)
_ROLE_ARN = re.compile(r"arn:[a-z0-9-]+:iam::\d{12}:role/\S{1,512}")
_SESSION_NAME = re.compile(r"[\w+=,.@-]{2,64}", re.ASCII)

# Java class names that stand for what this client does anyway.
_JAVA_ROLE_FACTORY = "org.apache.iceberg.aws.AssumeRoleAwsClientFactory"
_JAVA_CLASSES = {
    "client.factory": (
        "org.apache.iceberg.aws.AwsClientFactories$DefaultAwsClientFactory",
        _JAVA_ROLE_FACTORY,
    ),
    "client.credentials-provider": (
        "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
    ),
}

# The service's error codes. Each set has errors of its own.
_NOT_FOUND = frozenset(("NotFoundException", "InvalidArnException"))
_DISABLED = frozenset(("DisabledException", "KMSInvalidStateException"))
_UNAVAILABLE = frozenset(
    "KeyUnavailableException Throttling ThrottlingException TooManyRequestsException "
    "RequestLimitExceeded LimitExceededException KMSInternalException DependencyTimeoutException "
    "InternalFailure ServiceUnavailable ServiceUnavailableException "
    "CustomKeyStoreInvalidStateException CloudHsmClusterNotActiveException".split()
)
_EXPIRED = frozenset(("ExpiredToken", "ExpiredTokenException"))
_REFUSED = frozenset(("AccessDenied", "AccessDeniedException", "NotAuthorizedException"))
_UNRECOGNIZED = frozenset(
    "AuthFailure IncompleteSignature IncompleteSignatureException InvalidAccessKeyId "
    "InvalidClientTokenId InvalidSignatureException MissingAuthenticationToken "
    "MissingAuthenticationTokenException OptInRequired RegionDisabledException RequestExpired "
    "SignatureDoesNotMatch UnrecognizedClientException".split()
)
_NOT_UNWRAPPED = frozenset(("InvalidCiphertextException", "IncorrectKeyException"))
# Errors that say that one key does not unwrap, and nothing about other keys.
_NEXT_KEY = (KmsUnwrapError, KmsAccessDeniedError, KmsKeyNotFoundError, KmsKeyDisabledError)
# Our messages quote the service's message only for these codes. Other messages may have secrets:
# ValidationException quotes parameters, and the message about a wrong signature quotes the request
# with its session token.
_QUOTABLE = frozenset().union(
    *(_NOT_FOUND, _DISABLED, _UNAVAILABLE, _REFUSED),
    ("IncorrectKeyException", "InvalidKeyUsageException", "UnsupportedOperationException"),
)
_MAX_QUOTE = 300

# These print requests with their bodies and session tokens, responses, and credentials, at DEBUG.
_TALKATIVE = tuple(
    f"botocore.{module}"
    for module in "auth credentials endpoint httpsession parsers tokens utils".split()
)
_working: contextvars.ContextVar[bool] = contextvars.ContextVar("ags1.kms.aws", default=False)


def _hide(record: logging.LogRecord) -> bool:
    """A filter for the loggers in ``_TALKATIVE``. It changes only what they log in a thread during
    a call of ours."""
    if _working.get():
        record.msg = "<hidden by ags1: it may hold a key or a credential>"
        record.args = ()
        record.exc_info = record.exc_text = record.stack_info = None
    return True


class AwsKms(SdkClient[Any]):
    """A KMS client for AWS KMS, or for a service with the same protocol at ``kms.endpoint``.

    A ``key_id`` is a key's ID or ARN, an alias (``alias/name``) or an alias's ARN. If an alias is
    later pointed to another key, what was wrapped under it unwraps only with the former key: name
    it with ``kms.aws.former-keys``, and wrap again. The ARN of a key never changes its meaning. If
    an ARN names a multi-Region key, the client uses the replica in its own region.

    Properties (all optional):

    - ``client.region`` and the credentials ``client.access-key-id``,
      ``client.secret-access-key``, ``client.session-token`` or ``client.profile-name``. Without
      them, boto3 looks in the environment, files, container and instance.
    - ``kms.endpoint``: a URL. Without it, the SDK's own settings apply (AWS_ENDPOINT_URL_KMS, …).
      ``http`` is for tests, because keys cross the network unencrypted. It is refused through a
      proxy, and to another machine unless ``kms.allow-plaintext-http`` is true. The same is true
      for STS.
    - ``kms.encryption-algorithm-spec``: ``SYMMETRIC_DEFAULT``, or the algorithm of an asymmetric
      master key (``RSAES_OAEP_SHA_256``, …).
    - ``kms.data-key-spec``: ``AES_256`` or ``AES_128``, Java's size of generated keys. Here the
      caller of ``generate_key`` gives the size, and the property is only checked.
    - ``client.assume-role.arn`` (or PyIceberg's ``client.role-arn``): a role to assume. It is
      assumed again before its credentials expire. ``.region`` (of STS and of KMS),
      ``.external-id``, ``.session-name``, ``.timeout-sec`` and ``.tags.*`` belong to it.
    - ``http-client.apache.connection-timeout-ms`` and ``.socket-timeout-ms`` (``.urlconnection.``
      if ``http-client.type`` says so), otherwise ``kms.connect-timeout-ms`` and
      ``kms.read-timeout-ms``; ``kms.max-attempts``.
    - ``kms.aws.former-keys``: pairs ``NAME=KEY``, separated by commas. ``KEY`` is what the alias
      ``NAME`` pointed to before. It is tried if ``NAME`` does not unwrap a key.

    ``client.factory`` and ``client.credentials-provider`` name Java classes. Only a class that does
    what this client does is accepted: with any other, the credentials would not be the configured
    ones. If a call is throttled, times out or meets a failing server, the SDK repeats it.
    """

    accepts_foreign_keys = True
    _fixed_credential = "client.access-key-id"
    _extra = "aws"
    _libraries = ("boto3",)

    @property
    def wraps_with_public_key(self) -> bool:
        """Whether the configured algorithm is an asymmetric one."""
        return self._algorithm != SYMMETRIC_DEFAULT

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        given = self._properties
        _check_credentials(given)
        self._region = given.get("client.region")
        self._plaintext_allowed = allowed = endpoints.is_allowed(given)
        # The environment or a profile may name an endpoint. It is checked before it is used.
        self._endpoint = given.get("kms.endpoint")
        if self._endpoint:
            name, form = "the property 'kms.endpoint'", "https://host:port/path"
            endpoints.checked_url(name, self._endpoint, allowed=allowed, form=form)
        self._algorithm = given.choice(
            "kms.encryption-algorithm-spec", default=SYMMETRIC_DEFAULT, choices=_ALGORITHMS
        )
        given.choice("kms.data-key-spec", default=_DATA_KEY_SPECS[0], choices=_DATA_KEY_SPECS)
        kind = given.choice("http-client.type", default="apache", choices=_HTTP_CLIENTS)
        connect = f"http-client.{kind}.connection-timeout-ms"
        read = f"http-client.{kind}.socket-timeout-ms"
        self._timeout_s = (
            given.number(connect, default=given.connect_timeout_ms) / 1000,
            given.number(read, default=given.read_timeout_ms) / 1000,
        )
        self._role = _role(given)
        self._former_keys = _former_keys(given.get(FORMER_KEYS))
        self._arns: dict[str, str] = {}

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        if not 1 <= len(key) <= _MAX_PLAINTEXT_SIZE:
            raise KmsError(
                f"AWS KMS wraps keys of 1 to {_MAX_PLAINTEXT_SIZE} bytes; this one has {len(key)}"
            )
        request = {"Plaintext": bytes(key), "EncryptionAlgorithm": self._algorithm}
        return self._wrapped(key_id, self._ask("encrypt", key_id, request))

    @discreet
    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        request = {
            "CiphertextBlob": _checked_wrapped_key(wrapped_key),
            "EncryptionAlgorithm": self._algorithm,
        }
        try:
            return self._bytes(self._ask("decrypt", key_id, request), "Plaintext")
        except _NEXT_KEY:
            for other in self._former_keys.get(key_id, ()):
                with contextlib.suppress(*_NEXT_KEY):
                    return self._bytes(self._ask("decrypt", other, request), "Plaintext")
            raise

    @property
    def supports_key_generation(self) -> bool:
        """Whether the configured algorithm is the symmetric one."""
        return not self.wraps_with_public_key

    @discreet
    def generate_key(self, key_id: str, key_size: int) -> GeneratedKey:
        """Have KMS make a key of 1 to 1024 bytes: GenerateDataKey with NumberOfBytes."""
        if not self.supports_key_generation:
            raise NotImplementedError(
                "AWS KMS makes no keys under an asymmetric master key: make a key and wrap it"
            )
        if not 1 <= key_size <= _MAX_GENERATED_SIZE:
            raise NotImplementedError(
                f"AWS KMS generates keys of 1 to {_MAX_GENERATED_SIZE} bytes, not {key_size}"
            )
        answer = self._ask("generate_data_key", key_id, {"NumberOfBytes": key_size})
        key = self._bytes(answer, "Plaintext")
        if len(key) != key_size:
            raise self._not_kms(f"a key of {len(key)} bytes where {key_size} were asked for")
        return GeneratedKey(key, self._wrapped(key_id, answer))

    def own_name(self, key_id: str) -> str | None:
        """Return the ARN of the key that ``key_id`` stood for when it last wrapped a key."""
        return self._arns.get(key_id)

    def close(self) -> None:
        if client := self._connection.take():
            client.close()

    def __repr__(self) -> str:
        return f"AwsKms(region={self._region!r}, endpoint={self._endpoint!r})"

    def _connect(self) -> Any:
        import boto3
        import botocore.config

        for name in _TALKATIVE:
            logging.getLogger(name).addFilter(_hide)
        given = self._properties
        profile = given.get("client.profile-name")
        config = botocore.config.Config(
            connect_timeout=self._timeout_s[0],
            read_timeout=self._timeout_s[1],
            retries={"mode": "standard", "total_max_attempts": self._max_attempts},
        )
        session = boto3.Session(
            profile_name=profile,
            region_name=self._region,
            aws_access_key_id=given.get("client.access-key-id"),
            aws_secret_access_key=given.get("client.secret-access-key"),
            aws_session_token=given.get("client.session-token"),
        )
        # AWS_REGION is what Java reads; boto3 does not.
        region = session.region_name or os.environ.get("AWS_REGION")
        if self._role:
            region = given.get("client.assume-role.region") or region
        client_of = functools.partial(self._client, region_name=region, config=config)
        if self._role:
            session = _assuming(self._role, profile, session, functools.partial(client_of, session))
        return client_of(session, "kms", endpoint_url=self._endpoint)

    def _client(self, session: Any, service: str, **options: Any) -> Any:
        client = session.client(service, **options)
        endpoints.check(client.meta.endpoint_url, allowed=self._plaintext_allowed)
        endpoints.check_proxy(client.meta.endpoint_url)
        return client

    def _wrapped(self, key_id: str, answer: Mapping[str, Any]) -> bytes:
        wrapped_key = self._bytes(answer, "CiphertextBlob")
        arn = answer.get("KeyId")
        if isinstance(arn, str) and _KEY_ARN.fullmatch(arn):
            self._arns[key_id] = arn
        return wrapped_key

    def _ask(self, operation: str, key_id: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(key_id, str) or not 1 <= len(key_id) <= _MAX_KEY_ID_LENGTH:
            raise KmsKeyNotFoundError(
                f"the id of a master key of AWS KMS has 1 to {_MAX_KEY_ID_LENGTH} characters"
            )

        def ask(client: Any) -> dict[str, Any]:
            name = key_id
            if arn := _MULTI_REGION_ARN.fullmatch(key_id):
                name = f"{arn[1]}{client.meta.region_name}{arn[2]}"
            answer: dict[str, Any] = getattr(client, operation)(KeyId=name, **request)
            return answer

        return self._call(operation, key_id, ask)

    def _attempt(self, action: str, key_id: str, work: Callable[[], Any]) -> Any:
        # The SDK may look for credentials while it makes a client, too.
        working = _working.set(True)
        try:
            return super()._attempt(action, key_id, work)
        finally:
            _working.reset(working)

    @property
    def _where(self) -> str:
        client = self._connection.made()
        return f"AWS KMS at {endpoints.shown(client.meta.endpoint_url)}" if client else "AWS KMS"

    def _failure(self, action: str, key_id: str, error: Exception) -> KmsError:
        from botocore import exceptions as sdk

        client, where = self._connection.made(), self._where
        call, name = action.title().replace("_", ""), type(error).__name__
        doing = f"{call} with the master key {key_id!r}"
        if isinstance(error, sdk.ClientError):
            region = client.meta.region_name if client else None
            return _refusal(error, action, key_id, doing, where, region)
        if failure := _sdk_failure(error, doing, where):
            return failure
        if client is None:
            return KmsConfigurationError(f"the AWS SDK does not accept its configuration ({name})")
        if isinstance(error, sdk.BotoCoreError):
            return KmsError(f"{where}: the AWS SDK could not carry out {doing} ({name})")
        # The SDK raises various exceptions for an answer that is not from KMS.
        return self._not_kms(f"an answer to {doing} that the AWS SDK cannot read ({name})")

    def _bytes(self, answer: Mapping[str, Any], name: str) -> bytes:
        value = answer.get(name)
        if not isinstance(value, bytes) or not value:
            raise self._not_kms(f"an answer without {name}")
        return value

    def _not_kms(self, what: str) -> KmsUnavailableError:
        return KmsUnavailableError(
            f"{self._where} gave {what}: something other than KMS answers there (a proxy?)"
        )


def _assuming(
    role: Mapping[str, Any], profile: str | None, session: Any, make_client: Callable[..., Any]
) -> Any:
    """Return a session with the credentials of the role. botocore asks STS for them with those of
    ``session``, and again before they expire. ``role`` is the request for AssumeRole."""
    import boto3
    import botocore.session
    from botocore import credentials, exceptions

    source = session.get_credentials()
    if source is None:
        raise exceptions.NoCredentialsError
    fetcher = credentials.AssumeRoleCredentialFetcher(
        make_client, source, role["RoleArn"], extra_args=role
    )
    assumed = credentials.DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")
    assuming = botocore.session.Session(profile=profile)
    provider = types.SimpleNamespace(load_credentials=lambda: assumed)
    assuming.register_component("credential_provider", provider)
    return boto3.Session(botocore_session=assuming)


def _check_credentials(properties: Properties) -> None:
    for name, known in _JAVA_CLASSES.items():
        if properties.get(name) not in (None, *known):
            raise KmsConfigurationError(
                f"the property {name!r} names a Java class that has no counterpart here: configure "
                "the credentials by 'client.profile-name', 'client.assume-role.arn' or the "
                "environment"
            )
    access_key_id = properties.get("client.access-key-id")
    if (access_key_id is None) != (properties.get("client.secret-access-key") is None):
        raise KmsConfigurationError(
            "only one of 'client.access-key-id' and 'client.secret-access-key' is given: give both"
        )
    if properties.get("client.session-token") and not access_key_id:
        raise KmsConfigurationError(
            "'client.session-token' is given without 'client.access-key-id'"
        )
    names = ("client.access-key-id", "client.profile-name", "client.credentials-provider")
    given = [name for name in names if properties.get(name)]
    if len(given) > 1:
        raise KmsConfigurationError(
            f"{given[0]!r} and {given[1]!r} both name credentials: give one"
        )


def _former_keys(text: str | None) -> dict[str, list[str]]:
    former: dict[str, list[str]] = {}
    for pair in text.split(",") if text else ():
        name, equals, key_id = map(str.strip, pair.partition("="))
        if not (name and equals and key_id):
            raise KmsConfigurationError(
                f"the property {FORMER_KEYS!r} must have pairs NAME=KEY, separated by commas"
            )
        former.setdefault(name, []).append(key_id)
    return former


def _role(properties: Properties) -> dict[str, Any] | None:
    """Return the request for AssumeRole, None if no role is configured."""
    if properties.get("client.factory") == _JAVA_ROLE_FACTORY:
        # Java's factory refuses to start without these two.
        properties.require("client.assume-role.arn")
        properties.require("client.assume-role.region")
    arn = properties.get("client.assume-role.arn", "client.role-arn")
    if arn is None:
        return None
    if not _ROLE_ARN.fullmatch(arn):
        raise KmsConfigurationError(
            "the property 'client.assume-role.arn' is not the ARN of a role"
        )
    session_name = properties.get("client.assume-role.session-name", "client.role-session-name")
    if session_name is None:
        session_name = f"ags1-{uuid.uuid4()}"
    elif not _SESSION_NAME.fullmatch(session_name):
        raise KmsConfigurationError(
            "the property 'client.assume-role.session-name' is not of 2 to 64 letters, digits "
            "and +=,.@_-"
        )
    request: dict[str, Any] = {
        "RoleArn": arn,
        "RoleSessionName": session_name,
        "DurationSeconds": properties.number(
            "client.assume-role.timeout-sec", default=3600, minimum=900, maximum=43_200
        ),
    }
    if external_id := properties.get("client.assume-role.external-id"):
        request["ExternalId"] = external_id
    if tags := properties.with_prefix("client.assume-role.tags."):
        request["Tags"] = [{"Key": name, "Value": value} for name, value in sorted(tags.items())]
    return request


def _checked_wrapped_key(wrapped_key: bytes) -> bytes:
    if not 1 <= len(wrapped_key) <= _MAX_WRAPPED_SIZE:
        raise KmsUnwrapError(
            f"{len(wrapped_key)} bytes are no key that AWS KMS wrapped: "
            f"it has 1 to {_MAX_WRAPPED_SIZE}"
        )
    return bytes(wrapped_key)


def _sdk_failure(error: Exception, doing: str, where: str) -> KmsError | None:
    """Return our error for what the SDK raises before it has an answer; None if a user cannot act
    on it."""
    from botocore import exceptions as sdk

    name = type(error).__name__
    no_credentials = (
        *(sdk.NoCredentialsError, sdk.PartialCredentialsError, sdk.CredentialRetrievalError),
        *(sdk.TokenRetrievalError, sdk.RefreshWithMFAUnsupportedError, sdk.SSOError),
        getattr(sdk, "LoginError", sdk.SSOError),  # newer than the oldest boto3 we take
    )
    if isinstance(error, no_credentials):
        return KmsAccessDeniedError(
            f"no credentials for {where} were found, or they could not be refreshed ({name}): set "
            "'client.profile-name', 'client.access-key-id' or the environment of the AWS SDK, or "
            "log in again"
        )
    if isinstance(error, sdk.NoRegionError):
        return KmsConfigurationError(
            "no AWS region is configured: set 'client.region' or AWS_DEFAULT_REGION"
        )
    if isinstance(error, sdk.ProfileNotFound):
        return KmsConfigurationError(
            "the AWS configuration has no profile of the name that 'client.profile-name' or "
            "AWS_PROFILE gives"
        )
    if isinstance(error, (sdk.ConnectTimeoutError, sdk.ReadTimeoutError)):
        return KmsUnavailableError(f"{where} did not answer {doing} in time ({name})")
    if isinstance(error, (sdk.HTTPClientError, sdk.ConnectionError)):
        if _bad_header(error):
            return KmsConfigurationError(
                f"the credentials for {where} have a line end or another character that no header "
                "may have: look at AWS_ACCESS_KEY_ID, AWS_SESSION_TOKEN or the credentials file"
            )
        request = f"{where} could not be reached for {doing}"
        trust = "AWS_CA_BUNDLE names a file with the certificate of the authority that signed it"
        return unasked(error, request, trust)
    file = getattr(error, "filename", None) or _credential_files()
    if isinstance(error, (OSError, UnicodeError)) and file:
        # Not a request's, but of a file with credentials, such as AWS_WEB_IDENTITY_TOKEN_FILE.
        return unreadable(error, file, where)
    if isinstance(error, EOFError):
        return KmsAccessDeniedError(
            f"no credentials for {where}: the role asks for a code of a second factor (MFA), and "
            "there is no terminal to type it: log in before (aws sts, aws-vault), or take a role "
            "without MFA"
        )
    return None


def _bad_header(error: BaseException) -> bool:
    """Whether http.client refused a header of the request, which is made of credentials."""
    return any(
        isinstance(one, ValueError) and "header value" in str(one).lower() for one in below(error)
    )


def _credential_files() -> str:
    """Return the files of credentials that the environment names."""
    names = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    given = [f"{os.environ[name]} ({name})" for name in names if os.environ.get(name)]
    return " or ".join(given)


def _refusal(
    error: Any, operation: str, key_id: str, doing: str, where: str, region: str | None
) -> KmsError:
    """Return our error for an error answer of a service."""
    details = error.response.get("Error", {})
    code = details.get("Code")
    if not isinstance(code, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.]{0,99}", code):
        code = None
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    answer = code or f"HTTP {status}"
    message = details.get("Message")
    if code in _QUOTABLE and isinstance(message, str) and message:
        answer += ": " + " ".join(message.split())[:_MAX_QUOTE]
    if error.operation_name == "AssumeRole":
        doing, operation, where = "to assume the configured role", "assume_role", "AWS STS"
    if code is None and status < 500:
        return KmsUnavailableError(
            f"{where} answered {doing} with {answer} and nothing that KMS would say: "
            "something other than KMS answers there (a proxy?)"
        )
    if code in _EXPIRED:
        return KmsAccessDeniedError(f"the credentials for {where} have expired ({answer})")
    if code in _UNRECOGNIZED:
        return KmsAccessDeniedError(
            f"{where} does not accept the credentials ({answer}): are they of this account and "
            "region, and is the clock right?"
        )
    if code in _REFUSED:
        return KmsAccessDeniedError(f"{where} refused {doing} ({answer})")
    if code in _UNAVAILABLE or status >= 500 or status == 429:
        return KmsUnavailableError(f"{where} did not carry out {doing} ({answer})")
    if code in _DISABLED:
        return KmsKeyDisabledError(
            f"the master key {key_id!r} of {where} is disabled, about to be deleted or without "
            f"its key material ({answer})"
        )
    if code in _NOT_FOUND:
        return KmsKeyNotFoundError(
            f"{where} has no master key {key_id!r} ({answer}){_missing_hint(key_id, region)}"
        )
    if operation == "decrypt" and code in _NOT_UNWRAPPED:
        return KmsUnwrapError(
            f"the master key {key_id!r} of {where} does not unwrap the wrapped key: another key "
            f"wrapped it, or it was changed ({answer})"
        )
    if code == "ValidationException" and "'keyId'" in str(message):
        return KmsKeyNotFoundError(
            f"{where} does not accept {key_id!r} as the name of a master key ({answer}): give a "
            "key's ID or ARN, an alias 'alias/NAME' or an alias's ARN"
        )
    if code == "InvalidKeyUsageException":
        return KmsConfigurationError(
            f"the master key {key_id!r} of {where} is not one for "
            f"'kms.encryption-algorithm-spec' as configured ({answer})"
        )
    return KmsError(f"{where} refused {doing} ({answer})")


def _missing_hint(key_id: str, region: str | None) -> str:
    if region is None:
        return ""
    parts = key_id.split(":")
    if parts[0] == "arn":
        if len(parts) > 3 and parts[3] != region:
            return f"; the client is for the region {region!r} ('client.region')"
        return ""
    if _UUID.fullmatch(key_id) or key_id.startswith("alias/"):
        return f" in the region {region!r} of this account"
    return f"; an alias is named 'alias/{key_id}'"
