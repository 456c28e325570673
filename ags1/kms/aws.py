"""A client for AWS KMS over boto3. It calls KMS as Java's ``AwsKeyManagementClient`` does, Encrypt
and Decrypt with the configured algorithm and no encryption context, so that each reads what the
other wrapped.

Properties follow Java's ``AwsProperties``, ``AwsClientProperties``, ``HttpClientProperties`` and
``AssumeRoleAwsClientFactory``, and PyIceberg's names of credentials. Nothing of the SDK's leaves
this module: its exceptions hold requests, and what it logs while it works for us is hidden.
"""

from __future__ import annotations

import base64
import contextvars
import logging
import os
import re
import textwrap
import uuid
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar
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
from .client import GeneratedKey, KeyInfo, KeyVersion
from .plaintext_http import InsecureEndpointWarning, crosses_the_network, through_a_proxy
from .process import PerProcess
from .properties import Properties, missing_library

T = TypeVar("T")

SYMMETRIC_DEFAULT = "SYMMETRIC_DEFAULT"
# What wraps, and which kind of master key create_key makes for it.
_KEY_SPECS = {
    SYMMETRIC_DEFAULT: SYMMETRIC_DEFAULT,
    "RSAES_OAEP_SHA_1": "RSA_4096",
    "RSAES_OAEP_SHA_256": "RSA_4096",
    "SM2PKE": "SM2",
}
_DATA_KEY_SPECS = ("AES_256", "AES_128")

# KMS's own limits, in bytes and characters.
_MAX_PLAINTEXT_SIZE = 4096
_MAX_WRAPPED_SIZE = 6144
_MAX_GENERATED_SIZE = 1024
_MAX_KEY_ID_LENGTH = 2048

_ALIAS = re.compile(r"alias/(?!aws/)[A-Za-z0-9/_-]{1,250}")
_UUID = re.compile(r"(mrk-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32}", re.I)
_ROLE_ARN = re.compile(r"arn:[a-z0-9-]+:iam::\d{12}:role/\S{1,512}")
_SESSION_NAME = re.compile(r"[\w+=,.@-]{2,64}", re.ASCII)

_DELETION_WINDOW_DAYS = 7  # the shortest that KMS takes

# Java class names that stand for what this client does anyway.
_JAVA_DEFAULT_PROVIDER = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
_JAVA_DEFAULT_FACTORY = "org.apache.iceberg.aws.AwsClientFactories$DefaultAwsClientFactory"
_JAVA_ROLE_FACTORY = "org.apache.iceberg.aws.AssumeRoleAwsClientFactory"

_NOT_FOUND = {"NotFoundException", "InvalidArnException"}
_DISABLED = {"DisabledException", "KMSInvalidStateException"}
_UNAVAILABLE = {
    "KeyUnavailableException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "RequestLimitExceeded",
    "LimitExceededException",
    "KMSInternalException",
    "DependencyTimeoutException",
    "InternalFailure",
    "ServiceUnavailable",
    "ServiceUnavailableException",
    "CustomKeyStoreInvalidStateException",
    "CloudHsmClusterNotActiveException",
}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException"}
_REFUSED = {"AccessDenied", "AccessDeniedException", "NotAuthorizedException"}
_UNRECOGNIZED = {
    "AuthFailure",
    "IncompleteSignature",
    "IncompleteSignatureException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "OptInRequired",
    "RegionDisabledException",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_NOT_UNWRAPPED = {"InvalidCiphertextException", "IncorrectKeyException", "ValidationException"}
# The service's own words are repeated for these. Not for the rest: ValidationException quotes
# parameters, and a refused signature the request with its session token.
_QUOTABLE = (
    _NOT_FOUND
    | _DISABLED
    | _UNAVAILABLE
    | _REFUSED
    | {
        "AlreadyExistsException",
        "IncorrectKeyException",
        "InvalidAliasNameException",
        "InvalidKeyUsageException",
        "UnsupportedOperationException",
    }
)
_MAX_QUOTE = 300

# These print requests with their bodies and session tokens, responses, and credentials, at DEBUG.
_TALKATIVE = (
    "botocore.auth",
    "botocore.credentials",
    "botocore.endpoint",
    "botocore.httpsession",
    "botocore.parsers",
    "botocore.tokens",
    "botocore.utils",
)
_working: contextvars.ContextVar[bool] = contextvars.ContextVar("ags1.kms.aws", default=False)


def _hide(record: logging.LogRecord) -> bool:
    """The filter of those loggers: blanks what is logged while, and where, a call of ours runs.
    Everybody else's use of the SDK logs as ever."""
    if _working.get():
        record.msg = "<hidden by ags1: it may hold a key or a credential>"
        record.args = ()
        record.exc_info = record.exc_text = record.stack_info = None
    return True


@dataclass(frozen=True, slots=True)
class _Role:
    arn: str
    region: str | None
    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Settings:
    region: str | None
    endpoint: str | None
    algorithm: str
    profile: str | None
    access_key_id: str | None
    secret_access_key: str | None = field(repr=False)
    session_token: str | None = field(repr=False)
    role: _Role | None
    connect_timeout_ms: int
    read_timeout_ms: int
    max_attempts: int


@dataclass(frozen=True, slots=True)
class _Connection:
    client: Any
    where: str
    region: str | None


class AwsKms:
    """A KMS client over AWS KMS, or what speaks its protocol at ``kms.endpoint``.

    A ``key_id`` is a key's id or ARN, an alias (``alias/name``) or an alias's ARN. A table that is
    to outlive its alias is better given the ARN: what was wrapped does not unwrap when the alias
    has come to point to another key.

    Properties (all optional):

    - ``client.region`` and the credentials ``client.access-key-id``,
      ``client.secret-access-key``, ``client.session-token`` or ``client.profile-name``; else
      boto3's own chain of environment, files, container and instance.
    - ``kms.endpoint``: a URL (else what the SDK knows: AWS_ENDPOINT_URL_KMS, …). Keys pass through
      it in the clear, so ``http`` is for tests: not through a proxy, and with an
      InsecureEndpointWarning to another machine.
    - ``kms.encryption-algorithm-spec``: ``SYMMETRIC_DEFAULT``, or what an asymmetric master key
      takes (``RSAES_OAEP_SHA_256``, …).
    - ``kms.data-key-spec``: ``AES_256`` or ``AES_128``, checked and otherwise without effect. Java
      takes the size of generated keys from it; ``generate_key`` here is told the size, that of the
      table's keys.
    - ``client.assume-role.arn`` (or PyIceberg's ``client.role-arn``): a role to be assumed, and
      again before its credentials expire; with ``.region`` (of STS, and of KMS too),
      ``.external-id``, ``.session-name``, ``.timeout-sec`` and ``.tags.*``.
    - ``http-client.apache.connection-timeout-ms`` and ``.socket-timeout-ms`` (``.urlconnection.``
      when ``http-client.type`` says so), else ``kms.connect-timeout-ms`` and
      ``kms.read-timeout-ms``; ``kms.max-attempts``.

    ``client.factory`` and ``client.credentials-provider`` name Java classes. Those that mean what
    this client does are accepted; any other is refused, since ignoring it would mean to act with
    other credentials than configured.

    Calls raise the errors of ``KmsClient``. The SDK repeats a call that was throttled, timed out or
    met a failing server, with back-off. Making and rotating master keys is not repeated: an answer
    that got lost may have done its work. The read time-out is one between two reads, and bounds
    neither the time nor the size of a whole answer.
    """

    accepts_foreign_keys = True

    @property
    def wraps_with_public_key(self) -> bool:
        """Whether the configured algorithm is an asymmetric one."""
        return self._settings.algorithm != SYMMETRIC_DEFAULT

    def __init__(self, properties: Mapping[str, str]) -> None:
        try:
            import boto3  # noqa: F401 - better known now than when the first key is needed
        except ImportError as error:
            raise missing_library("aws", error) from error
        self._properties = Properties(properties)
        self._settings = _settings(self._properties)
        # As far as it is known before connecting, where a profile may name another one.
        self._warned_of = _named_endpoint(self._settings)
        if self._warned_of and crosses_the_network(self._warned_of):
            _warn(self._warned_of, stacklevel=3)
        self._connection = PerProcess(lambda: self._connect(self._settings.max_attempts))
        # For what must not be repeated. How often to try is a property of an SDK's client.
        self._single_attempts = PerProcess(lambda: self._connect(1))

    # Wrapping

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        if not 1 <= len(key) <= _MAX_PLAINTEXT_SIZE:
            raise KmsError(
                f"AWS KMS wraps keys of 1 to {_MAX_PLAINTEXT_SIZE} bytes; this one has {len(key)}"
            )
        answer = self._call(
            "encrypt",
            key_id,
            KeyId=key_id,
            Plaintext=bytes(key),
            EncryptionAlgorithm=self._settings.algorithm,
        )
        return self._field(answer, "CiphertextBlob", bytes)

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        answer = self._call(
            "decrypt",
            key_id,
            KeyId=key_id,
            CiphertextBlob=_checked_wrapped_key(wrapped_key),
            EncryptionAlgorithm=self._settings.algorithm,
        )
        return self._field(answer, "Plaintext", bytes)

    @property
    def supports_key_generation(self) -> bool:
        """Whether the configured algorithm is the symmetric one: KMS generates no keys under an
        asymmetric master key."""
        return self._settings.algorithm == SYMMETRIC_DEFAULT

    def generate_key(self, key_id: str, key_size: int) -> GeneratedKey:
        """Have KMS make a key of ``key_size`` bytes, wrapped under ``key_id``: GenerateDataKey with
        NumberOfBytes, so that 24 is possible too. Raises NotImplementedError."""
        if not self.supports_key_generation:
            raise NotImplementedError(
                "AWS KMS generates no keys under an asymmetric master key; wrap one"
            )
        if not 1 <= key_size <= _MAX_GENERATED_SIZE:
            raise NotImplementedError(
                f"AWS KMS generates keys of 1 to {_MAX_GENERATED_SIZE} bytes, not {key_size}"
            )
        answer = self._call("generate_data_key", key_id, KeyId=key_id, NumberOfBytes=key_size)
        key = self._field(answer, "Plaintext", bytes)
        if len(key) != key_size:
            self._not_kms(f"a key of {len(key)} bytes where {key_size} were asked for")
        return GeneratedKey(key, self._field(answer, "CiphertextBlob", bytes))

    def rewrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        """Return the same key wrapped under the newest version of ``key_id``; it does not leave
        KMS. The caller needs the permission ``kms:ReEncrypt*`` besides those for wrapping."""
        answer = self._call(
            "re_encrypt",
            key_id,
            CiphertextBlob=_checked_wrapped_key(wrapped_key),
            SourceKeyId=key_id,
            DestinationKeyId=key_id,
            SourceEncryptionAlgorithm=self._settings.algorithm,
            DestinationEncryptionAlgorithm=self._settings.algorithm,
        )
        return self._field(answer, "CiphertextBlob", bytes)

    # Managing master keys

    def list_keys(self) -> Iterator[KeyInfo]:
        """Yield the account's master keys for encryption in this region, by ARN, without versions.

        Each is described by a call of its own; one that the caller may not describe has the
        algorithm ``unknown``.
        """
        aliases: dict[str, list[str]] = {}
        for entry in self._pages("list_aliases", "Aliases"):
            if target := entry.get("TargetKeyId"):
                aliases.setdefault(target, []).append(self._field(entry, "AliasName", str))
        arns = [self._field(entry, "KeyArn", str) for entry in self._pages("list_keys", "Keys")]
        for arn in sorted(arns):
            names = tuple(sorted(aliases.get(arn.rpartition("/")[2], ())))
            try:
                metadata = self._metadata(arn)
            except KmsAccessDeniedError:
                yield KeyInfo(arn, "unknown", aliases=names)
                continue
            if metadata.get("KeyUsage") == "ENCRYPT_DECRYPT":
                yield _key_info(metadata, aliases=names)

    def describe_key(self, key_id: str) -> KeyInfo:
        """Return what KMS tells about a master key. ``key_id`` of the result is its ARN.

        Versions are numbered in the order of their making. What the caller may not ask for
        (rotations, aliases, the public key) is left out.
        """
        metadata = self._metadata(key_id)
        return _key_info(
            metadata, versions=self._versions(metadata), aliases=self._aliases(metadata)
        )

    def create_key(self, key_id: str) -> KeyInfo:
        """Make a master key and the alias ``key_id`` for it, ``alias/name`` or ``name``.

        KMS chooses the key's own id; the result has its ARN. An alias that exists is refused and
        never repointed: it is looked up before a key is made. When the alias still cannot be made,
        the new key is scheduled for deletion, and the error says so. The key is symmetric unless
        ``kms.encryption-algorithm-spec`` says otherwise.
        """
        alias = _new_alias(key_id)
        if self._target(alias) is not None:
            raise KmsError(f"the alias {alias!r} exists already; it is left as it is")
        answer = self._call(
            "create_key",
            alias,
            once=True,
            KeyUsage="ENCRYPT_DECRYPT",
            KeySpec=_KEY_SPECS[self._settings.algorithm],
            Description=f"Master key {alias.removeprefix('alias/')} of encrypted tables",
        )
        metadata = self._checked_metadata(answer)
        try:
            self._call("create_alias", alias, AliasName=alias, TargetKeyId=metadata["KeyId"])
        except KmsError as error:
            self._keep_or_discard(alias, metadata, error)
        return _key_info(metadata, aliases=(alias,))

    def rotate_key(self, key_id: str) -> KeyInfo:
        """Rotate a symmetric master key on demand. KMS does it in its own time: for some seconds
        the result, and wrapping, may still show the version before."""
        arn = self._metadata(key_id)["Arn"]
        self._call("rotate_key_on_demand", key_id, once=True, KeyId=arn)
        return self.describe_key(key_id)

    def close(self) -> None:
        for connections in (self._connection, self._single_attempts):
            if connection := connections.take():
                connection.client.close()

    def __repr__(self) -> str:
        return f"AwsKms(region={self._settings.region!r}, endpoint={self._settings.endpoint!r})"

    def __reduce__(self) -> tuple[type[AwsKms], tuple[dict[str, str]]]:
        return AwsKms, (self._properties.to_pickle(),)

    # Calling KMS

    def _connect(self, max_attempts: int) -> _Connection:
        import boto3
        import botocore.config
        import botocore.session

        for name in _TALKATIVE:
            logging.getLogger(name).addFilter(_hide)
        settings = self._settings
        config = botocore.config.Config(
            connect_timeout=settings.connect_timeout_ms / 1000,
            read_timeout=settings.read_timeout_ms / 1000,
            retries={"mode": "standard", "total_max_attempts": max_attempts},
        )
        session = boto3.Session(
            profile_name=settings.profile,
            region_name=settings.region,
            aws_access_key_id=settings.access_key_id,
            aws_secret_access_key=settings.secret_access_key,
            aws_session_token=settings.session_token,
        )
        # AWS_REGION is what Java reads; boto3 does not.
        region = session.region_name or os.environ.get("AWS_REGION")
        if role := settings.role:
            region = role.region or region
            sts = session.client("sts", region_name=region, config=config)
            self._check_endpoint(sts.meta.endpoint_url)
            assuming = botocore.session.Session(profile=settings.profile)
            assuming.register_component("credential_provider", _RoleCredentials(sts, role))
            session = boto3.Session(botocore_session=assuming)
        client = session.client(
            "kms", region_name=region, endpoint_url=settings.endpoint, config=config
        )
        self._check_endpoint(client.meta.endpoint_url)
        where = f"AWS KMS at {_shown(client.meta.endpoint_url)}"
        return _Connection(client, where, client.meta.region_name)

    def _check_endpoint(self, url: str) -> None:
        import botocore.utils

        if url.startswith("http:") and botocore.utils.get_environ_proxies(url).get("http"):
            raise through_a_proxy(_shown(url))
        if crosses_the_network(url) and url != self._warned_of:
            _warn(url, stacklevel=2)

    def _call(
        self, operation: str, key_id: str | None, *, once: bool = False, **parameters: Any
    ) -> dict[str, Any]:
        if key_id is not None:
            _check_key_id(key_id)
        connection = None
        working = _working.set(True)
        try:
            connection = (self._single_attempts if once else self._connection).get()
            answer: dict[str, Any] = getattr(connection.client, operation)(**parameters)
            return answer
        except Exception as error:
            # Also what the SDK does not foresee: it stumbles over answers that are not KMS's.
            failure = _failure(error, operation, key_id, connection)
        finally:
            _working.reset(working)
        # Not inside `except`: the SDK's exception, and the request in it, would stay attached.
        raise failure

    def _field(self, answer: Mapping[str, Any], name: str, kind: type[T]) -> T:
        value = answer.get(name)
        if not isinstance(value, kind) or not value:
            self._not_kms(f"an answer without {name}")
        return value

    def _not_kms(self, what: str) -> NoReturn:
        raise KmsUnavailableError(
            f"{self._connection.get().where} gave {what}: "
            "something other than KMS answers there (a proxy?)"
        )

    def _pages(self, operation: str, name: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        while True:
            answer = self._call(operation, None, **parameters)
            if not isinstance(answer.get(name), list):
                self._not_kms(f"an answer without {name}")
            yield from answer[name]
            marker = answer.get("NextMarker")
            if not answer.get("Truncated") or not marker or marker == parameters.get("Marker"):
                return
            parameters["Marker"] = marker

    def _metadata(self, key_id: str) -> dict[str, Any]:
        answer = self._call("describe_key", key_id, KeyId=key_id)
        return self._checked_metadata(answer)

    def _checked_metadata(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        metadata: dict[str, Any] = self._field(answer, "KeyMetadata", dict)
        self._field(metadata, "Arn", str)
        self._field(metadata, "KeyId", str)
        return metadata

    def _target(self, alias: str) -> str | None:
        """Return the id of the key that an alias points to, None when there is no such alias."""
        try:
            return str(self._metadata(alias)["KeyId"])
        except KmsKeyNotFoundError:
            return None

    def _keep_or_discard(self, alias: str, metadata: Mapping[str, Any], error: KmsError) -> None:
        """After CreateAlias failed: return if it was made all the same, an answer having got lost;
        else raise, with the new key scheduled for deletion."""
        try:
            if self._target(alias) == metadata["KeyId"]:
                return
            self._call(
                "schedule_key_deletion",
                metadata["KeyId"],
                KeyId=metadata["KeyId"],
                PendingWindowInDays=_DELETION_WINDOW_DAYS,
            )
        except KmsError as second:
            raise type(error)(
                f"{error.message}; the key that was to get the alias, {metadata['Arn']}, "
                f"is left behind: {second.message}"
            ) from None
        raise type(error)(
            f"{error.message}; the key that was to get the alias, {metadata['Arn']}, "
            f"is deleted in {_DELETION_WINDOW_DAYS} days"
        ) from None

    def _versions(self, metadata: Mapping[str, Any]) -> tuple[KeyVersion, ...]:
        made_ms = _epoch_ms(metadata.get("CreationDate"))
        enabled = metadata.get("KeyState") == "Enabled"
        try:
            if metadata.get("KeySpec", SYMMETRIC_DEFAULT) != SYMMETRIC_DEFAULT:
                answer = self._call("get_public_key", metadata["Arn"], KeyId=metadata["Arn"])
                public_key = _pem(self._field(answer, "PublicKey", bytes))
                return (KeyVersion("1", made_ms, enabled, public_key=public_key),)
            rotations = list(
                self._pages("list_key_rotations", "Rotations", KeyId=metadata["KeyId"])
            )
        except KmsUnavailableError:
            raise
        except KmsError:
            return ()
        dates = [made_ms, *sorted(_epoch_ms(one.get("RotationDate")) or 0 for one in rotations)]
        return tuple(KeyVersion(str(n), date, enabled) for n, date in enumerate(dates, 1))

    def _aliases(self, metadata: Mapping[str, Any]) -> tuple[str, ...]:
        try:
            entries = list(self._pages("list_aliases", "Aliases", KeyId=metadata["Arn"]))
        except KmsUnavailableError:
            raise
        except KmsError:
            return ()
        return tuple(sorted(self._field(entry, "AliasName", str) for entry in entries))


class _RoleCredentials:
    """What a botocore session asks for its credentials: those of an assumed role, which botocore
    asks for again before they expire."""

    def __init__(self, sts: Any, role: _Role) -> None:
        self._sts = sts
        self._role = role

    def load_credentials(self) -> Any:
        from botocore.credentials import DeferredRefreshableCredentials

        return DeferredRefreshableCredentials(self._assume, "assume-role")

    def _assume(self) -> dict[str, str]:
        made = self._sts.assume_role(**self._role.request)["Credentials"]
        return {
            "access_key": made["AccessKeyId"],
            "secret_key": made["SecretAccessKey"],
            "token": made["SessionToken"],
            "expiry_time": made["Expiration"].isoformat(),
        }


# Properties


def _settings(properties: Properties) -> _Settings:
    factory = properties.get("client.factory")
    if factory not in (None, _JAVA_DEFAULT_FACTORY, _JAVA_ROLE_FACTORY):
        raise KmsConfigurationError(
            "the property 'client.factory' names a Java class that has no counterpart here: "
            "configure the credentials by 'client.profile-name', 'client.assume-role.arn' or the "
            "environment"
        )
    provider = properties.get("client.credentials-provider")
    if provider not in (None, _JAVA_DEFAULT_PROVIDER):
        raise KmsConfigurationError(
            "the property 'client.credentials-provider' names a Java class that has no counterpart "
            "here: configure the credentials by 'client.profile-name', 'client.assume-role.arn' or "
            "the environment"
        )
    access_key_id = properties.get("client.access-key-id")
    secret_access_key = properties.get("client.secret-access-key")
    session_token = properties.get("client.session-token")
    profile = properties.get("client.profile-name")
    if (access_key_id is None) != (secret_access_key is None):
        raise KmsConfigurationError(
            "of 'client.access-key-id' and 'client.secret-access-key' only one is given"
        )
    if session_token and not access_key_id:
        raise KmsConfigurationError(
            "'client.session-token' is given without 'client.access-key-id'"
        )
    given = [access_key_id and "client.access-key-id", profile and "client.profile-name"]
    given = [name for name in [*given, provider and "client.credentials-provider"] if name]
    if len(given) > 1:
        raise KmsConfigurationError(
            f"{given[0]!r} and {given[1]!r} both name credentials: one is meant"
        )
    properties.choice("kms.data-key-spec", default=_DATA_KEY_SPECS[0], choices=_DATA_KEY_SPECS)
    http_client = properties.choice(
        "http-client.type", default="apache", choices=("apache", "urlconnection")
    )
    return _Settings(
        region=properties.get("client.region"),
        endpoint=_endpoint(properties),
        algorithm=properties.choice(
            "kms.encryption-algorithm-spec", default=SYMMETRIC_DEFAULT, choices=tuple(_KEY_SPECS)
        ),
        profile=profile,
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        role=_role(properties, required=factory == _JAVA_ROLE_FACTORY),
        connect_timeout_ms=properties.number(
            f"http-client.{http_client}.connection-timeout-ms",
            default=properties.connect_timeout_ms,
        ),
        read_timeout_ms=properties.number(
            f"http-client.{http_client}.socket-timeout-ms",
            default=properties.read_timeout_ms,
        ),
        max_attempts=properties.max_attempts,
    )


def _endpoint(properties: Properties) -> str | None:
    endpoint = properties.get("kms.endpoint")
    if endpoint is None:
        return None
    try:
        url = urlsplit(endpoint)
        sound = url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port)
    except ValueError:
        sound = False
    if not sound:
        raise KmsConfigurationError("the property 'kms.endpoint' is not an http or https URL")
    if "@" in url.netloc:
        raise KmsConfigurationError("the property 'kms.endpoint' may not hold credentials")
    return endpoint


def _named_endpoint(settings: _Settings) -> str | None:
    """Return the endpoint that the property or the environment names."""
    environ = os.environ
    if (
        settings.endpoint
        or environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true"
    ):
        return settings.endpoint
    return environ.get("AWS_ENDPOINT_URL_KMS") or environ.get("AWS_ENDPOINT_URL")


def _shown(url: str) -> str:
    """Return an endpoint's address; the environment's may have credentials in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _warn(url: str, stacklevel: int) -> None:
    warnings.warn(
        f"{_shown(url)} is not https: keys and credentials cross the network in the clear",
        InsecureEndpointWarning,
        stacklevel=stacklevel + 1,
    )


def _role(properties: Properties, *, required: bool) -> _Role | None:
    if required:
        # Java's factory refuses to start without these two.
        properties.require("client.assume-role.arn")
        properties.require("client.assume-role.region")
    arn = properties.get("client.assume-role.arn", "client.role-arn")
    if arn is None:
        return None
    if not _ROLE_ARN.fullmatch(arn):
        raise KmsConfigurationError("the property 'client.assume-role.arn' is no ARN of a role")
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
    return _Role(arn, properties.get("client.assume-role.region"), request)


# Arguments and answers


def _check_key_id(key_id: str) -> None:
    if not isinstance(key_id, str) or not 1 <= len(key_id) <= _MAX_KEY_ID_LENGTH:
        raise KmsKeyNotFoundError(
            f"the id of a master key of AWS KMS has 1 to {_MAX_KEY_ID_LENGTH} characters"
        )


def _checked_wrapped_key(wrapped_key: bytes) -> bytes:
    if not 1 <= len(wrapped_key) <= _MAX_WRAPPED_SIZE:
        raise KmsUnwrapError(
            f"{len(wrapped_key)} bytes are no key that AWS KMS wrapped: "
            f"it has 1 to {_MAX_WRAPPED_SIZE}"
        )
    return bytes(wrapped_key)


def _new_alias(key_id: str) -> str:
    alias = key_id if key_id.startswith("alias/") else f"alias/{key_id}"
    if not _ALIAS.fullmatch(alias) or _UUID.fullmatch(key_id):
        raise KmsError(
            f"{key_id!r} cannot be the name of a new master key: AWS KMS chooses its id, and an "
            "alias for it is made of letters, digits and /_-, and does not begin with alias/aws/"
        )
    return alias


def _key_info(
    metadata: Mapping[str, Any],
    *,
    versions: tuple[KeyVersion, ...] = (),
    aliases: tuple[str, ...] = (),
) -> KeyInfo:
    return KeyInfo(
        key_id=str(metadata["Arn"]),
        algorithm=str(metadata.get("KeySpec", SYMMETRIC_DEFAULT)),
        enabled=metadata.get("KeyState") == "Enabled",
        current_version=versions[-1].version if versions else None,
        versions=versions,
        aliases=aliases,
    )


def _epoch_ms(date: Any) -> int | None:
    return None if date is None else int(date.timestamp() * 1000)


def _pem(der: bytes) -> str:
    text = "\n".join(textwrap.wrap(base64.b64encode(der).decode(), 64))
    return f"-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n"


# Failures


def _failure(
    error: Exception, operation: str, key_id: str | None, connection: _Connection | None
) -> KmsError:
    """Return our error for one of the SDK's. Of its text only what cannot hold a secret is kept."""
    from botocore import exceptions as sdk

    if isinstance(error, KmsError):
        return error
    where = connection.where if connection else "AWS KMS"
    call = operation.title().replace("_", "")
    name = type(error).__name__
    doing = f"{call} with the master key {key_id!r}" if key_id else call
    if isinstance(error, sdk.ClientError):
        return _refusal(error, operation, doing, key_id, where, connection)
    if isinstance(
        error,
        (
            sdk.NoCredentialsError,
            sdk.PartialCredentialsError,
            sdk.CredentialRetrievalError,
            sdk.TokenRetrievalError,
            sdk.RefreshWithMFAUnsupportedError,
            sdk.SSOError,
            getattr(sdk, "LoginError", sdk.SSOError),  # newer than the oldest boto3 we take
        ),
    ):
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
    if isinstance(error, sdk.SSLError):
        return KmsUnavailableError(
            f"no trusted TLS connection to {where} ({name}): is its certificate's authority known "
            "(AWS_CA_BUNDLE)?"
        )
    if isinstance(error, (sdk.ConnectTimeoutError, sdk.ReadTimeoutError)):
        return KmsUnavailableError(f"{where} did not answer {doing} in time ({name})")
    if isinstance(error, (sdk.HTTPClientError, sdk.ConnectionError)):
        return KmsUnavailableError(f"{where} could not be reached for {doing} ({name})")
    if connection is None:
        return KmsConfigurationError(f"the AWS SDK does not accept its configuration ({name})")
    if isinstance(error, AttributeError) and not hasattr(connection.client, operation):
        return KmsConfigurationError(f"the installed boto3 is too old to know {call} of AWS KMS")
    if isinstance(error, sdk.BotoCoreError):
        return KmsError(f"{where}: the AWS SDK could not carry out {doing} ({name})")
    return KmsUnavailableError(
        f"{where} gave an answer to {doing} that the AWS SDK cannot read ({name}): "
        "something other than KMS answers there (a proxy?)"
    )


def _refusal(
    error: Any,
    operation: str,
    doing: str,
    key_id: str | None,
    where: str,
    connection: _Connection | None,
) -> KmsError:
    """Return our error for a service's error answer."""
    details = error.response.get("Error", {})
    code = details.get("Code")
    if not isinstance(code, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.]{0,99}", code):
        code = None
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    said = code or f"HTTP {status}"
    message = details.get("Message")
    if code in _QUOTABLE and isinstance(message, str) and message:
        said += ": " + " ".join(message.split())[:_MAX_QUOTE]
    if error.operation_name == "AssumeRole":
        doing, operation, where = "to assume the configured role", "assume_role", "AWS STS"
    if code is None and status < 500:
        return KmsUnavailableError(
            f"{where} answered {doing} with {said} and nothing that KMS would say: "
            "something other than KMS answers there (a proxy?)"
        )
    if code in _EXPIRED:
        return KmsAccessDeniedError(f"the credentials for {where} have expired ({said})")
    if code in _UNRECOGNIZED:
        return KmsAccessDeniedError(
            f"{where} does not accept the credentials ({said}): are they of this account and "
            "region, and is the clock right?"
        )
    if code in _REFUSED:
        return KmsAccessDeniedError(f"{where} refused {doing} ({said})")
    if code in _UNAVAILABLE or status >= 500 or status == 429:
        return KmsUnavailableError(f"{where} did not carry out {doing} ({said})")
    if code in _DISABLED:
        return KmsKeyDisabledError(
            f"the master key {key_id!r} of {where} is disabled, about to be deleted or without "
            f"its key material ({said})"
        )
    if code in _NOT_FOUND:
        return KmsKeyNotFoundError(
            f"{where} has no master key {key_id!r} ({said}){_missing_hint(key_id, connection)}"
        )
    if operation in ("decrypt", "re_encrypt") and code in _NOT_UNWRAPPED:
        return KmsUnwrapError(
            f"the master key {key_id!r} of {where} does not unwrap the wrapped key: another key "
            f"wrapped it, or it was changed ({said})"
        )
    if code == "InvalidKeyUsageException":
        return KmsConfigurationError(
            f"the master key {key_id!r} of {where} is not one for "
            f"'kms.encryption-algorithm-spec' as configured ({said})"
        )
    return KmsError(f"{where} refused {doing} ({said})")


def _missing_hint(key_id: str | None, connection: _Connection | None) -> str:
    if key_id is None or connection is None:
        return ""
    parts = key_id.split(":")
    if parts[0] == "arn":
        if len(parts) > 3 and parts[3] != connection.region:
            return f"; the client is for the region {connection.region!r} ('client.region')"
        return ""
    if _UUID.fullmatch(key_id) or key_id.startswith("alias/"):
        return f" in the region {connection.region!r} of this account"
    return f"; an alias is named 'alias/{key_id}'"
