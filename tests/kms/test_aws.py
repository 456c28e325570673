"""AWS KMS: against moto's server, and against faults that are answered in KMS's own shapes."""

from __future__ import annotations

import base64
import functools
import json
import logging
import os
import pickle
import re
import socket
import sys
import threading
import types
import urllib.parse
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto.server")

from aws_server import ACCOUNT, REGION, aws_server, dummy_environment  # noqa: E402
from kms_contract import KEY, KmsContract, check_rights, everything_said, spellings  # noqa: E402

from ags1.errors import (  # noqa: E402
    KmsAccessDeniedError,
    KmsConfigurationError,
    KmsError,
    KmsKeyDisabledError,
    KmsKeyNotFoundError,
    KmsUnavailableError,
    KmsUnwrapError,
)
from ags1.keys import KeyEncryptionKey  # noqa: E402
from ags1.kms import KmsClient, from_properties  # noqa: E402
from ags1.kms.aws import AwsKms  # noqa: E402
from ags1.kms.endpoints import InsecureEndpointWarning  # noqa: E402

OTHER_ACCOUNT = "111122223333"
ROLE_ARN = f"arn:aws:iam::{OTHER_ACCOUNT}:role/encrypter"
KEY_ID = "1234abcd-12ab-34cd-56ef-1234567890ab"
KEY_ARN = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/{KEY_ID}"
TOKEN = "IQoJb3JpZ2luX2VjTHISISASESSIONTOKEN"


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """Nobody's real credentials, configuration or proxy, and the SDK's back-off between attempts
    takes no time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("AWS_") or name.lower().endswith("_proxy"):
                patch.delenv(name)
        for name, value in dummy_environment("").items():
            if value:
                patch.setenv(name, value)
        patch.setattr("botocore.endpoint.time", types.SimpleNamespace(sleep=lambda seconds: 0))
        yield


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with aws_server() as url:
        yield url


# A client takes a hundredth of a second to make, so that tests share these.


@pytest.fixture(scope="module")
def plain(endpoint: str) -> Any:
    """The SDK's client by itself."""
    return boto3.Session(region_name=REGION).client("kms", endpoint_url=endpoint)


@pytest.fixture(scope="module")
def kms(endpoint: str) -> Iterator[AwsKms]:
    client = AwsKms({"client.region": REGION, "kms.endpoint": endpoint})
    yield client
    client.close()


@pytest.fixture(scope="module")
def key_id(plain: Any) -> str:
    return str(plain.create_key()["KeyMetadata"]["KeyId"])


def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class TestContract(KmsContract):
    """Where moto's answer differs from that of KMS, the error is looser here; what KMS says is
    tested by its shape, in test_what_kms_says_becomes_our_error."""

    @pytest.fixture
    def other_key_id(self, plain: Any) -> str:
        return str(plain.create_key()["KeyMetadata"]["KeyId"])

    @pytest.fixture
    def missing_key_id(self) -> str:
        return KEY_ID

    @pytest.fixture
    def unreachable(self) -> AwsKms:
        return AwsKms(
            {
                "kms.endpoint": f"http://127.0.0.1:{unused_port()}",
                "kms.connect-timeout-ms": "200",
                "kms.read-timeout-ms": "200",
                "kms.max-attempts": "2",
            }
        )

    def test_another_master_key_does_not_unwrap(
        self, kms: KmsClient, key_id: str, other_key_id: str
    ) -> None:
        # moto: AccessDeniedException; KMS: IncorrectKeyException
        with pytest.raises((KmsUnwrapError, KmsAccessDeniedError)) as caught:
            kms.unwrap_key(kms.wrap_key(KEY, key_id), other_key_id)
        assert not any(form in everything_said(caught.value) for form in spellings(KEY))

    @pytest.mark.parametrize("where", [0.0, 0.6, 1.0])
    def test_a_changed_wrapped_key_does_not_unwrap(
        self, kms: KmsClient, key_id: str, where: float
    ) -> None:
        wrapped = bytearray(kms.wrap_key(KEY, key_id))
        wrapped[int(where * (len(wrapped) - 1))] ^= 1
        # moto writes the key's id in front, unprotected, and denies access to a changed one.
        error = KmsUnwrapError if where else KmsAccessDeniedError
        with pytest.raises(error):
            kms.unwrap_key(bytes(wrapped), key_id)


# Both ways with the SDK itself, and with Java


def test_the_sdk_reads_what_we_wrap_and_we_what_it_wraps(
    kms: AwsKms, plain: Any, key_id: str
) -> None:
    wrapped = kms.wrap_key(KEY, key_id)
    assert plain.decrypt(CiphertextBlob=wrapped)["Plaintext"] == KEY
    wrapped = plain.encrypt(KeyId=key_id, Plaintext=KEY)["CiphertextBlob"]
    assert kms.unwrap_key(wrapped, key_id) == KEY
    made = kms.generate_key(key_id, 16)
    assert plain.decrypt(CiphertextBlob=made.wrapped_key)["Plaintext"] == made.key


def test_an_encryption_context_is_never_used(kms: AwsKms, plain: Any, key_id: str) -> None:
    wrapped = plain.encrypt(KeyId=key_id, Plaintext=KEY, EncryptionContext={"table": "t"})
    with pytest.raises(KmsUnwrapError):
        kms.unwrap_key(wrapped["CiphertextBlob"], key_id)


def test_every_name_of_a_master_key_works(kms: AwsKms, plain: Any) -> None:
    metadata = plain.create_key()["KeyMetadata"]
    plain.create_alias(AliasName="alias/every-name", TargetKeyId=metadata["KeyId"])
    alias_arn = f"arn:aws:kms:{REGION}:{ACCOUNT}:alias/every-name"
    names = [metadata["KeyId"], metadata["Arn"], "alias/every-name", alias_arn]
    for wrapping in names:
        wrapped = kms.wrap_key(KEY, wrapping)
        assert [kms.unwrap_key(wrapped, name) for name in names] == [KEY] * 4
        assert kms.generate_key(wrapping, 32).key


@pytest.mark.parametrize("size", [16, 24, 32])
def test_a_generated_key_has_the_size_asked_for(kms: AwsKms, key_id: str, size: int) -> None:
    made = kms.generate_key(key_id, size)
    assert len(made.key) == size
    assert kms.unwrap_key(made.wrapped_key, key_id) == made.key


@pytest.mark.parametrize("size", [0, -1, 1025])
def test_sizes_that_kms_does_not_generate(kms: AwsKms, key_id: str, size: int) -> None:
    with pytest.raises(NotImplementedError):
        kms.generate_key(key_id, size)


def test_a_key_encryption_key_goes_round(kms: AwsKms, key_id: str) -> None:
    kek = KeyEncryptionKey.generate(kms, key_id, key_size=16)
    again = KeyEncryptionKey.unwrap(kms, kek.entry)
    assert again._key == kek._key


@pytest.mark.parametrize(
    "properties",
    [
        {"encryption.kms-type": "aws"},
        {"encryption.kms-impl": "org.apache.iceberg.aws.AwsKeyManagementClient"},
    ],
)
def test_the_properties_of_java_make_this_client(properties: dict[str, str]) -> None:
    client = from_properties({**properties, "client.region": "eu-west-1"})
    assert isinstance(client, AwsKms)
    assert client.accepts_foreign_keys
    assert repr(client) == "AwsKms(region='eu-west-1', endpoint=None)"


def test_an_asymmetric_master_key_wraps(endpoint: str, plain: Any) -> None:
    made = plain.create_key(KeyUsage="ENCRYPT_DECRYPT", KeySpec="RSA_2048")["KeyMetadata"]
    kms = AwsKms({"kms.endpoint": endpoint, "kms.encryption-algorithm-spec": "RSAES_OAEP_SHA_256"})
    assert kms.unwrap_key(kms.wrap_key(KEY, made["Arn"]), made["Arn"]) == KEY
    assert not kms.supports_key_generation
    with pytest.raises(NotImplementedError, match="asymmetric"):
        kms.generate_key(made["Arn"], 16)


def test_a_missing_key_comes_with_a_hint(kms: AwsKms) -> None:
    with pytest.raises(KmsKeyNotFoundError, match="client is for the region 'us-east-1'"):
        kms.wrap_key(KEY, KEY_ARN.replace(REGION, "eu-west-1"))
    with pytest.raises(KmsKeyNotFoundError, match="'alias/orders'"):
        kms.wrap_key(KEY, "orders")
    for name in ("", "x" * 2049):
        with pytest.raises(KmsKeyNotFoundError, match="1 to 2048 characters"):
            kms.wrap_key(KEY, name)


# Faults


Answer = Callable[["Handler", "Request"], None]


@dataclass
class Request:
    headers: dict[str, str]
    body: bytes

    @property
    def operation(self) -> str:
        if "action=" in self.body.decode("latin-1").lower():
            return self.form["Action"]
        return self.headers.get("x-amz-target", "").removeprefix("TrentService.")

    @property
    def json(self) -> dict[str, Any]:
        parsed = json.loads(self.body)
        assert isinstance(parsed, dict)
        return parsed

    @property
    def form(self) -> dict[str, str]:
        return dict(urllib.parse.parse_qsl(self.body.decode()))


@dataclass
class Faults:
    """A server that answers by script, and the requests that it got. The last answer of the script
    is given again and again; ``by_operation`` comes first."""

    script: list[Answer] = field(default_factory=list)
    by_operation: dict[str, Answer] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    @property
    def operations(self) -> list[str]:
        return [request.operation for request in self.requests]

    def kms(self, **properties: str) -> AwsKms:
        return AwsKms(
            {
                "client.region": REGION,
                "kms.endpoint": self.url,
                "kms.max-attempts": "3",
                **{name.replace("__", ".").replace("_", "-"): v for name, v in properties.items()},
            }
        )


class Handler(BaseHTTPRequestHandler):
    faults: Faults
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # one packet for head and body: Nagle would hold the second back

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        request = Request({name.lower(): value for name, value in self.headers.items()}, body)
        faults = self.faults
        faults.requests.append(request)
        answer = faults.by_operation.get(request.operation)
        if answer is None:
            answer = faults.script.pop(0) if len(faults.script) > 1 else faults.script[0]
        answer(self, request)

    def do_GET(self) -> None:
        """A container's credentials, with an error."""
        self.send_response(500)
        secret = b'{"SecretAccessKey": "hunter2/hunter2"}'
        self.send_header("content-length", str(len(secret)))
        self.end_headers()
        self.wfile.write(secret)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def faults() -> Iterator[Faults]:
    faults = Faults()
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("OwnHandler", (Handler,), {"faults": faults})
    )
    server.daemon_threads = True
    faults.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield faults
    faults.stopping.set()
    server.shutdown()
    thread.join()
    server.server_close()


def raw(status: int, body: bytes, content_type: str = "application/x-amz-json-1.1") -> Answer:
    def answer(handler: Handler, request: Request) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("x-amzn-RequestId", "6f0b1a34-0000-0000-0000-000000000000")
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def refusal(code: str, message: str = "", status: int = 400) -> Answer:
    return raw(status, json.dumps({"__type": code, "message": message}).encode())


def ok(**answer: Any) -> Answer:
    return raw(200, json.dumps(answer).encode())


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def wrapped_ok(handler: Handler, request: Request) -> None:
    ok(CiphertextBlob=encoded(b"wrapped"), KeyId=KEY_ARN, EncryptionAlgorithm="SYMMETRIC_DEFAULT")(
        handler, request
    )


def slow(handler: Handler, request: Request) -> None:
    handler.faults.stopping.wait(20)
    handler.close_connection = True


def hang_up(handler: Handler, request: Request) -> None:
    handler.close_connection = True


def cut_off(handler: Handler, request: Request) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "application/x-amz-json-1.1")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"CiphertextBlob": "')
    handler.close_connection = True


PASSING = {
    "throttled": refusal("ThrottlingException", "Rate exceeded"),
    "throttled, 429": refusal("ThrottlingException", "Rate exceeded", 429),
    "internal": refusal("KMSInternalException", "", 500),
    "dependency": refusal("DependencyTimeoutException", "", 503),
    "key unavailable": refusal("KeyUnavailableException", "", 500),
    "load balancer": raw(503, b"<html><body>Service Unavailable</body></html>", "text/html"),
    "hung up": hang_up,
    "slow": slow,
}
# What answers has time to do so on a busy machine.
TIMEOUTS = dict.fromkeys(PASSING, "20000") | {"slow": "500"}


def test_a_passing_fault_is_retried(faults: Faults, subtests: pytest.Subtests) -> None:
    clients = {ms: faults.kms(kms__read_timeout_ms=ms) for ms in TIMEOUTS.values()}
    for fault, answer in PASSING.items():
        with subtests.test(fault):
            faults.requests.clear()
            faults.script = [answer, answer, wrapped_ok]
            assert clients[TIMEOUTS[fault]].wrap_key(KEY, KEY_ID) == b"wrapped"
            assert faults.operations == ["Encrypt"] * 3
            assert len({request.body for request in faults.requests}) == 1


def test_attempts_are_bounded(faults: Faults, subtests: pytest.Subtests) -> None:
    clients = {
        ms: faults.kms(kms__max_attempts="2", kms__read_timeout_ms=ms) for ms in TIMEOUTS.values()
    }
    for fault, answer in PASSING.items():
        with subtests.test(fault):
            faults.requests.clear()
            faults.script = [answer]
            with pytest.raises(KmsUnavailableError) as caught:
                clients[TIMEOUTS[fault]].wrap_key(KEY, KEY_ID)
            assert faults.operations == ["Encrypt"] * 2
            assert faults.url in str(caught.value)
            assert_clean(caught.value)


def test_max_attempts_includes_the_first(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "7")
    monkeypatch.setenv("AWS_RETRY_MODE", "adaptive")
    faults.script = [refusal("ThrottlingException")]
    with pytest.raises(KmsUnavailableError):
        faults.kms(kms__max_attempts="1").wrap_key(KEY, KEY_ID)
    assert len(faults.requests) == 1


def assert_clean(error: BaseException) -> None:
    """No key, and nothing of the SDK's that holds the request."""
    assert not any(form in everything_said(error) for form in spellings(KEY))
    assert error.__cause__ is None
    assert error.__context__ is None


DENIED = (
    f"User: arn:aws:sts::{ACCOUNT}:assumed-role/reader/me is not authorized to perform: "
    f"kms:Decrypt on resource: {KEY_ARN} because no identity-based policy allows the action"
)
QUOTED = [
    ("NotFoundException", f"Key '{KEY_ARN}' does not exist", KmsKeyNotFoundError),
    ("InvalidArnException", "is not a valid ARN", KmsKeyNotFoundError),
    ("DisabledException", f"{KEY_ARN} is disabled.", KmsKeyDisabledError),
    ("KMSInvalidStateException", f"{KEY_ARN} is pending deletion.", KmsKeyDisabledError),
    ("AccessDeniedException", DENIED, KmsAccessDeniedError),
    ("KeyUnavailableException", "try again later", KmsUnavailableError),
    ("LimitExceededException", "a quota was exceeded", KmsUnavailableError),
    ("com.amazonaws.kms#ThrottlingException", "Rate exceeded", KmsUnavailableError),
    ("InvalidKeyUsageException", f"{KEY_ARN} key usage is SIGN_VERIFY", KmsConfigurationError),
]
UNQUOTED = [
    ("ExpiredTokenException", KmsAccessDeniedError),
    ("UnrecognizedClientException", KmsAccessDeniedError),
    ("InvalidClientTokenId", KmsAccessDeniedError),
    ("InvalidSignatureException", KmsAccessDeniedError),
    ("MissingAuthenticationTokenException", KmsAccessDeniedError),
    ("SomethingNewException", KmsError),
]


def errors_of_every_call(faults: Faults, kms: AwsKms, answer: Answer) -> Iterator[KmsError]:
    faults.script = [answer]
    for call in (
        lambda: kms.wrap_key(KEY, KEY_ID),
        lambda: kms.unwrap_key(b"wrapped", KEY_ID),
        lambda: kms.generate_key(KEY_ID, 16),
    ):
        with pytest.raises(KmsError) as caught:
            call()
        assert_clean(caught.value)
        assert faults.url in str(caught.value)
        yield caught.value


def test_what_kms_says_becomes_our_error(faults: Faults, subtests: pytest.Subtests) -> None:
    kms = faults.kms(kms__max_attempts="1")
    for code, message, error in QUOTED:
        with subtests.test(code):
            for raised in errors_of_every_call(faults, kms, refusal(code, message)):
                assert type(raised) is error
                assert f"{code.rpartition('#')[2]}: {message}" in str(raised)


def test_what_kms_says_may_be_left_out(faults: Faults, subtests: pytest.Subtests) -> None:
    kms = faults.kms(kms__max_attempts="1")
    for code, error in UNQUOTED:
        with subtests.test(code):
            answer = refusal(code, "which may quote the request")
            for raised in errors_of_every_call(faults, kms, answer):
                assert type(raised) is error
                assert f"({code})" in str(raised)


@pytest.mark.parametrize("code", ["InvalidCiphertextException", "IncorrectKeyException"])
def test_what_does_not_unwrap_is_named_so(faults: Faults, code: str) -> None:
    faults.script = [refusal(code)]
    with pytest.raises(KmsUnwrapError, match=f"{KEY_ID}.*{code}"):
        faults.kms().unwrap_key(b"wrapped", KEY_ID)
    assert len(faults.requests) == 1


def test_a_replica_of_a_multi_region_key_is_used_in_its_region(faults: Faults) -> None:
    faults.script = [wrapped_ok]
    multi = KEY_ARN.replace(KEY_ID, "mrk-" + "1a" * 16)
    for arn in (multi, multi.replace("mrk-", "mrk_"), KEY_ARN, f"{multi}x"):
        faults.kms(client__region="eu-west-1").wrap_key(KEY, arn)
    asked = [request.json["KeyId"] for request in faults.requests]
    assert asked[0] == multi.replace(REGION, "eu-west-1")
    assert asked[1:] == [multi.replace("mrk-", "mrk_"), KEY_ARN, f"{multi}x"]


def opens_only(key_id: str) -> Answer:
    def answer(handler: Handler, request: Request) -> None:
        right = request.json["KeyId"] == key_id
        said = ok(Plaintext=encoded(KEY)) if right else refusal("IncorrectKeyException")
        said(handler, request)

    return answer


def test_a_former_key_of_an_alias_unwraps_if_it_is_named(faults: Faults) -> None:
    old = KEY_ARN.replace("1234", "9999")
    faults.by_operation["Decrypt"] = opens_only(old)
    with pytest.raises(KmsUnwrapError):
        faults.kms().unwrap_key(b"wrapped", "alias/a")
    pairs = f"alias/b={KEY_ARN}, alias/a={KEY_ARN}, alias/a={old}"
    kms = AwsKms(
        {"client.region": REGION, "kms.endpoint": faults.url, "kms.aws.former-keys": pairs}
    )
    assert pickle.loads(pickle.dumps(kms)).unwrap_key(b"wrapped", "alias/a") == KEY
    with pytest.raises(KmsUnwrapError, match="alias/b"):
        kms.unwrap_key(b"wrapped", "alias/b")
    # A former key that could not be asked is not one that does not unwrap.
    faults.script = [refusal("IncorrectKeyException"), refusal("KMSInternalException", "", 500)]
    del faults.by_operation["Decrypt"]
    with pytest.raises(KmsUnavailableError):
        kms.unwrap_key(b"wrapped", "alias/a")


def test_what_an_alias_stands_for_is_noted_beside_it(faults: Faults) -> None:
    faults.script = [wrapped_ok]
    faults.by_operation["GenerateDataKey"] = ok(
        CiphertextBlob=encoded(b"wrapped"), Plaintext=encoded(KEY), KeyId=KEY_ARN
    )
    kms = faults.kms()
    kek = KeyEncryptionKey.generate(kms, "alias/a", key_size=16)
    assert kek.entry.encrypted_by_id == "alias/a"
    assert list(kek.entry.properties) == ["ags1.master-key", "KEY_TIMESTAMP"]  # Java's order
    assert kek.entry.properties["ags1.master-key"] == KEY_ARN
    # A key that only the entry names is not asked to unwrap.
    faults.by_operation["Decrypt"] = opens_only(KEY_ARN)
    with pytest.raises(KmsUnwrapError, match=f"says that '{KEY_ARN}' wrapped it"):
        KeyEncryptionKey.unwrap(kms, kek.entry)
    assert [r.json["KeyId"] for r in faults.requests if r.operation == "Decrypt"] == ["alias/a"]
    faults.by_operation["Decrypt"] = ok(Plaintext=encoded(KEY))
    assert "ags1.master-key" not in kek.rewrap(kms, KEY_ARN).entry.properties


def test_a_request_that_kms_cannot_read_says_nothing_about_the_wrapped_key(faults: Faults) -> None:
    what = "failed to satisfy constraint: Member must have length less than or equal to 2048"
    for place, error in (("keyId", KmsKeyNotFoundError), ("encryptionAlgorithm", KmsError)):
        faults.script = [refusal("ValidationException", f"Value 'x' at '{place}' {what}")]
        with pytest.raises(error, match="ValidationException") as caught:
            faults.kms().unwrap_key(b"wrapped", "alias/a b")
        assert type(caught.value) is error


def test_what_kms_quotes_of_the_request_is_not_repeated(faults: Faults) -> None:
    quoted = f"Value '{encoded(KEY)}' at 'plaintext'; x-amz-security-token:{TOKEN}"
    for code in ("ValidationException", "InvalidSignatureException", "SerializationException"):
        faults.script = [refusal(code, quoted)]
        with pytest.raises(KmsError) as caught:
            faults.kms().wrap_key(KEY, KEY_ID)
        assert_clean(caught.value)
        assert TOKEN not in str(caught.value)


GARBAGE = {
    "a page": raw(200, b"<html>Please log in</html>", "text/html"),
    "a page, 403": raw(403, b"<html>blocked</html>", "text/html"),
    "a page, 404": raw(404, b"not here", "text/plain"),
    "a page, 500": raw(500, b"<!doctype html>oops", "text/html"),
    "a redirect": raw(302, b"", "text/html"),
    "nothing": raw(200, b""),
    "an empty object": ok(),
    "a list": raw(200, b"[]"),
    "a text": raw(200, b'"x"'),
    "a list, 400": raw(400, b"[]"),
    "an odd code": raw(400, b'{"__type": 7, "message": {}}'),
    "a hostile code": raw(400, b'{"__type": "\\u001b[2J", "message": "x"}'),
    "null": ok(CiphertextBlob=None, Plaintext=None),
    "no base64": ok(CiphertextBlob="*", Plaintext="*"),
    "numbers": ok(CiphertextBlob=1, Plaintext=2),
    "empty": ok(CiphertextBlob="", Plaintext=""),
    "no UTF-8": raw(200, b'{"CiphertextBlob": "\xff"}'),
    "cut off": cut_off,
}


def test_garbage_is_no_answer(faults: Faults, subtests: pytest.Subtests) -> None:
    kms = faults.kms(kms__max_attempts="1")
    for name, garbage in GARBAGE.items():
        with subtests.test(name):
            for raised in errors_of_every_call(faults, kms, garbage):
                assert type(raised) is KmsUnavailableError
                assert str(raised).isprintable()


def test_a_generated_key_of_another_size_is_refused(faults: Faults) -> None:
    faults.script = [ok(Plaintext=encoded(bytes(8)), CiphertextBlob=encoded(b"w"))]
    with pytest.raises(KmsUnavailableError, match="8 bytes where 16"):
        faults.kms().generate_key(KEY_ID, 16)


def test_keys_that_kms_does_not_wrap_are_not_sent(faults: Faults) -> None:
    for key in (b"", b"k" * 4097):
        with pytest.raises(KmsError, match="1 to 4096 bytes"):
            faults.kms().wrap_key(key, KEY_ID)
    for wrapped in (b"", b"w" * 6145):
        with pytest.raises(KmsUnwrapError, match="1 to 6144"):
            faults.kms().unwrap_key(wrapped, KEY_ID)
    assert faults.requests == []


@pytest.mark.parametrize("algorithm", ["SYMMETRIC_DEFAULT", "RSAES_OAEP_SHA_256"])
def test_the_requests_are_those_of_java(faults: Faults, algorithm: str) -> None:
    faults.by_operation = {
        "Encrypt": wrapped_ok,
        "Decrypt": ok(Plaintext=encoded(KEY)),
        "GenerateDataKey": ok(Plaintext=encoded(bytes(24)), CiphertextBlob=encoded(b"w")),
    }
    kms = faults.kms(kms__encryption_algorithm_spec=algorithm, kms__data_key_spec="AES_128")
    kms.wrap_key(KEY, KEY_ARN)
    kms.unwrap_key(b"wrapped", KEY_ARN)
    assert [request.json for request in faults.requests] == [
        {"KeyId": KEY_ARN, "EncryptionAlgorithm": algorithm, "Plaintext": encoded(KEY)},
        {"KeyId": KEY_ARN, "EncryptionAlgorithm": algorithm, "CiphertextBlob": encoded(b"wrapped")},
    ]
    if kms.supports_key_generation:
        kms.generate_key(KEY_ARN, 24)
        assert faults.requests[2].json == {"KeyId": KEY_ARN, "NumberOfBytes": 24}


def test_no_tls_is_told(faults: Faults) -> None:
    faults.script = [wrapped_ok]
    kms = faults.kms(kms__endpoint=faults.url.replace("http", "https"), kms__max_attempts="1")
    with pytest.raises(KmsConfigurationError, match="TLS"):
        kms.wrap_key(KEY, KEY_ID)
    assert faults.requests == []


# Properties and credentials


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"kms.endpoint": "localhost:4566"}, "kms.endpoint"),
        ({"kms.endpoint": "http://"}, "kms.endpoint"),
        ({"kms.endpoint": "http://h:99999"}, "kms.endpoint"),
        ({"kms.endpoint": "http://user:hunter2@h"}, "may not hold credentials"),
        ({"kms.encryption-algorithm-spec": "AES"}, "kms.encryption-algorithm-spec"),
        ({"kms.data-key-spec": "AES_192"}, "kms.data-key-spec"),
        ({"kms.max-attempts": "0"}, "kms.max-attempts"),
        ({"kms.connect-timeout-ms": "soon"}, "kms.connect-timeout-ms"),
        ({"http-client.type": "netty"}, "http-client.type"),
        ({"http-client.apache.socket-timeout-ms": "-1"}, "http-client.apache.socket-timeout-ms"),
        ({"client.factory": "com.example.OurFactory"}, "client.factory"),
        ({"client.credentials-provider": "com.example.P"}, "client.credentials-provider"),
        ({"client.access-key-id": "AKIA"}, "only one of"),
        ({"client.secret-access-key": "hunter2"}, "only one of"),
        ({"client.session-token": "hunter2"}, "without 'client.access-key-id'"),
        (
            {
                "client.access-key-id": "AKIA",
                "client.secret-access-key": "hunter2",
                "client.profile-name": "p",
            },
            "both name credentials",
        ),
        ({"client.assume-role.arn": "admin"}, "client.assume-role.arn"),
        (
            {"client.assume-role.arn": ROLE_ARN, "client.assume-role.timeout-sec": "10"},
            "client.assume-role.timeout-sec",
        ),
        (
            {"client.assume-role.arn": ROLE_ARN, "client.assume-role.session-name": "a b"},
            "client.assume-role.session-name",
        ),
        (
            {"client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory"},
            "client.assume-role.arn",
        ),
    ],
)
def test_properties_are_checked_at_once(properties: dict[str, str], named: str) -> None:
    with pytest.raises(KmsConfigurationError, match=re.escape(named)) as caught:
        AwsKms(properties)
    assert b"hunter2" not in everything_said(caught.value)


@pytest.mark.parametrize(
    "properties",
    [
        {"client.factory": "org.apache.iceberg.aws.AwsClientFactories$DefaultAwsClientFactory"},
        {
            "client.credentials-provider": (
                "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
            )
        },
    ],
)
def test_java_classes_that_mean_the_default_are_accepted(
    faults: Faults, properties: dict[str, str]
) -> None:
    faults.script = [wrapped_ok]
    AwsKms({"kms.endpoint": faults.url, **properties}).wrap_key(KEY, KEY_ID)
    assert "Credential=testing/" in faults.requests[0].headers["authorization"]


def test_iceberg_names_of_timeouts_come_first() -> None:
    def timeouts(**more: str) -> tuple[float, float]:
        common = {"kms.connect-timeout-ms": "1100", "kms.read-timeout-ms": "1200"}
        config = AwsKms({**common, **more})._connection.get().meta.config
        return config.connect_timeout, config.read_timeout

    apache = {
        "http-client.apache.connection-timeout-ms": "2100",
        "http-client.apache.socket-timeout-ms": "2200",
    }
    other = {
        "http-client.urlconnection.connection-timeout-ms": "3100",
        "http-client.urlconnection.socket-timeout-ms": "3200",
    }
    assert timeouts() == (1.1, 1.2)
    assert timeouts(**apache, **other) == (2.1, 2.2)
    assert timeouts(**apache, **other, **{"http-client.type": "urlconnection"}) == (3.1, 3.2)


def test_credentials_in_the_properties_are_used_and_never_shown(faults: Faults) -> None:
    faults.script = [wrapped_ok]
    kms = AwsKms(
        {
            "kms.endpoint": faults.url,
            "client.region": "eu-central-1",
            "client.access-key-id": "AKIDOFTHEPROPERTIES",
            "client.secret-access-key": "hunter2/hunter2",
            "client.session-token": TOKEN,
        }
    )
    kms.wrap_key(KEY, KEY_ID)
    headers = faults.requests[0].headers
    assert "Credential=AKIDOFTHEPROPERTIES/" in headers["authorization"]
    assert "/eu-central-1/kms/" in headers["authorization"]
    assert headers["x-amz-security-token"] == TOKEN
    shown = repr(kms) + repr(vars(kms))
    assert "hunter2" not in shown
    assert TOKEN not in shown
    with pytest.raises(TypeError, match=r"not pickled"):
        pickle.dumps(kms)


def test_a_pickle_finds_its_own_credentials(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.script = [wrapped_ok]
    kms = faults.kms()
    kms.wrap_key(KEY, KEY_ID)
    data = pickle.dumps(kms)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOFTHEWORKER")
    pickle.loads(data).wrap_key(KEY, KEY_ID)
    assert "Credential=testing/" in faults.requests[0].headers["authorization"]
    assert "Credential=AKIDOFTHEWORKER/" in faults.requests[1].headers["authorization"]


def test_a_profile_is_used(faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    file.write_text("[lake]\naws_access_key_id = AKIDOFTHEPROFILE\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    faults.script = [wrapped_ok]
    faults.kms(client__profile_name="lake").wrap_key(KEY, KEY_ID)
    assert "Credential=AKIDOFTHEPROFILE/" in faults.requests[0].headers["authorization"]
    with pytest.raises(KmsConfigurationError, match=r"client\.profile-name"):
        faults.kms(client__profile_name="sea").wrap_key(KEY, KEY_ID)


def takes_only(access_key_id: str, refused: Answer) -> Answer:
    def answer(handler: Handler, request: Request) -> None:
        right = f"Credential={access_key_id}/" in request.headers["authorization"]
        (wrapped_ok if right else refused)(handler, request)

    return answer


@pytest.mark.parametrize("code", ["ExpiredTokenException", "AccessDeniedException"])
def test_a_credentials_file_that_was_rewritten_is_read_again(
    faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    file = tmp_path / "credentials"

    def write(name: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {name}\naws_secret_access_key = s\n")
        faults.script = [takes_only(name, refusal(code))]

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    write("OLD")
    kms = faults.kms()
    kms.wrap_key(KEY, KEY_ID)
    write("NEW")
    faults.requests.clear()
    results: list[bytes] = []
    work = functools.partial(kms.wrap_key, KEY, KEY_ID)
    threads = [threading.Thread(target=lambda: results.append(work())) for _ in range(6)]
    made = []
    connect = kms._connection._make
    monkeypatch.setattr(kms._connection, "_make", lambda: made.append(1) or connect())
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [b"wrapped"] * 6
    assert len(made) == 1  # for all threads
    # A refusal that lasts is tried twice, and credentials in the properties cannot change.
    faults.script = [refusal(code)]
    fixed = {"client__access_key_id": "A", "client__secret_access_key": "s"}
    for client, count in ((kms, 2), (faults.kms(**fixed), 1)):
        faults.requests.clear()
        with pytest.raises(KmsAccessDeniedError):
            client.wrap_key(KEY, KEY_ID)
        assert faults.operations == ["Encrypt"] * count


LEAST = [
    ({"kms:Encrypt", "kms:Decrypt"}, "make wrap unwrap rewrap"),
    ({"kms:GenerateDataKey", "kms:Decrypt"}, "make unwrap"),
    ({"kms:Encrypt"}, "make wrap"),
    ({"kms:Decrypt"}, "unwrap"),
    ({"kms:ReEncrypt*", "kms:DescribeKey"}, ""),
]


def test_what_each_right_is_for(
    kms: AwsKms,
    endpoint: str,
    key_id: str,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    """With moto's IAM, which allows a user what their policy says and nothing else."""
    from moto import settings
    from moto.iam import access_control
    from moto.kms.exceptions import AccessDeniedException

    def refuse(_: object) -> None:
        raise AccessDeniedException("not authorized")  # in KMS's form; moto uses IAM's

    iam = boto3.client("iam", region_name=REGION, endpoint_url=endpoint)
    kek = KeyEncryptionKey.generate(kms, key_id, key_size=16)
    wrapped = kms.wrap_key(KEY, key_id)
    users = []
    for actions, may in LEAST:
        user = f"user{len(users)}"
        iam.create_user(UserName=user)
        statement = {"Effect": "Allow", "Action": sorted(actions), "Resource": "*"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_user_policy(UserName=user, PolicyName="least", PolicyDocument=document)
        users.append((iam.create_access_key(UserName=user)["AccessKey"], may))
    monkeypatch.setattr(access_control.IAMRequest, "_raise_access_denied", refuse)
    monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)
    for made, may in users:
        with subtests.test(may):
            least = AwsKms(
                {
                    "client.region": REGION,
                    "kms.endpoint": endpoint,
                    "client.access-key-id": made["AccessKeyId"],
                    "client.secret-access-key": made["SecretAccessKey"],
                }
            )
            rewrap = functools.partial(kek.rewrap, least, key_id)
            check_rights(least, key_id, wrapped, may, rewrap=rewrap)


def test_missing_credentials_and_regions_are_named(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(KmsAccessDeniedError, match="no credentials") as caught:
        faults.kms().wrap_key(KEY, KEY_ID)
    assert_clean(caught.value)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    with pytest.raises(KmsConfigurationError, match=r"client\.region"):
        AwsKms({}).wrap_key(KEY, KEY_ID)
    assert faults.requests == []


def test_the_region_of_java_s_environment_is_the_last_resort(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-2")
    faults.script = [wrapped_ok]
    for default, expected in (("us-west-2", "us-west-2"), ("", "eu-west-2")):
        monkeypatch.setenv("AWS_DEFAULT_REGION", default)
        AwsKms({"kms.endpoint": faults.url}).wrap_key(KEY, KEY_ID)
        assert f"/{expected}/kms/" in faults.requests[-1].headers["authorization"]


def test_credentials_in_an_endpoint_of_the_environment_are_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", f"http://user:hunter2@127.0.0.1:{unused_port()}")
    with pytest.raises(KmsUnavailableError, match=r"http://127\.0\.0\.1") as caught:
        AwsKms({"kms.max-attempts": "1"}).wrap_key(KEY, KEY_ID)
    assert b"hunter2" not in everything_said(caught.value)


def test_a_missing_sdk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(KmsConfigurationError, match=r"ags1\[aws\]"):
        AwsKms({})


# Assuming a role


def test_an_assumed_role_acts_in_its_own_account(
    endpoint: str, kms: AwsKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint)
    role = AwsKms(
        {
            "kms.endpoint": endpoint,
            "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
            "client.assume-role.arn": ROLE_ARN,
            "client.assume-role.region": REGION,
        }
    )
    theirs: Any = role._connection.get()
    arn = theirs.create_key()["KeyMetadata"]["Arn"]
    theirs.create_alias(AliasName="alias/theirs", TargetKeyId=arn)
    assert f":{OTHER_ACCOUNT}:" in arn
    wrapped = role.wrap_key(KEY, "alias/theirs")
    assert role.unwrap_key(wrapped, arn) == KEY
    with pytest.raises(KmsKeyNotFoundError):
        kms.wrap_key(KEY, "alias/theirs")


def assumed(expires_in: timedelta) -> Answer:
    expiration = (datetime.now(timezone.utc) + expires_in).strftime("%Y-%m-%dT%H:%M:%SZ")
    return raw(
        200,
        f"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
        <AssumeRoleResult><Credentials><AccessKeyId>ASIAOFTHEROLE</AccessKeyId>
        <SecretAccessKey>secretoftherole</SecretAccessKey><SessionToken>{TOKEN}</SessionToken>
        <Expiration>{expiration}</Expiration></Credentials></AssumeRoleResult>
        </AssumeRoleResponse>""".encode(),
        "text/xml",
    )


ROLE_PROPERTIES = {
    "client.assume-role.arn": ROLE_ARN,
    "client.assume-role.region": "eu-west-1",
    "client.assume-role.external-id": "tenant-7",
    "client.assume-role.session-name": "nightly",
    "client.assume-role.timeout-sec": "1800",
    "client.assume-role.tags.team": "lake",
}


def test_the_role_is_asked_for_as_java_does(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", faults.url)
    faults.by_operation = {"AssumeRole": assumed(timedelta(hours=1)), "Encrypt": wrapped_ok}
    kms = AwsKms({"kms.endpoint": faults.url, **ROLE_PROPERTIES})
    kms.wrap_key(KEY, KEY_ID)
    kms.wrap_key(KEY, KEY_ID)
    assert faults.operations == ["AssumeRole", "Encrypt", "Encrypt"]
    asked, wrapping = faults.requests[:2]
    assert asked.form == {
        "Action": "AssumeRole",
        "Version": "2011-06-15",
        "RoleArn": ROLE_ARN,
        "RoleSessionName": "nightly",
        "DurationSeconds": "1800",
        "ExternalId": "tenant-7",
        "Tags.member.1.Key": "team",
        "Tags.member.1.Value": "lake",
    }
    assert "/eu-west-1/sts/" in asked.headers["authorization"]
    assert "Credential=testing/" in asked.headers["authorization"]
    assert "Credential=ASIAOFTHEROLE/" in wrapping.headers["authorization"]
    assert "/eu-west-1/kms/" in wrapping.headers["authorization"]
    assert wrapping.headers["x-amz-security-token"] == TOKEN


def test_a_role_whose_credentials_run_out_is_assumed_again(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", faults.url)
    faults.by_operation = {"AssumeRole": assumed(timedelta(minutes=5)), "Encrypt": wrapped_ok}
    kms = faults.kms(client__role_arn=ROLE_ARN)
    kms.wrap_key(KEY, KEY_ID)
    faults.requests.clear()
    kms.wrap_key(KEY, KEY_ID)
    assert "AssumeRole" in faults.operations


def test_a_role_that_is_refused_is_access_denied(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", faults.url)
    body = """<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error>
    <Type>Sender</Type><Code>AccessDenied</Code><Message>not authorized to perform:
    sts:AssumeRole</Message></Error></ErrorResponse>"""
    faults.by_operation = {"AssumeRole": raw(403, body.encode(), "text/xml")}
    with pytest.raises(KmsAccessDeniedError, match=r"assume.*role.*sts:AssumeRole") as caught:
        faults.kms(client__role_arn=ROLE_ARN).wrap_key(KEY, KEY_ID)
    assert_clean(caught.value)
    faults.by_operation = {"AssumeRole": assumed(-timedelta(minutes=5))}
    with pytest.raises(KmsError):
        faults.kms(client__role_arn=ROLE_ARN).wrap_key(KEY, KEY_ID)
    assert "Encrypt" not in faults.operations


# What is logged


class Log(logging.Handler):
    """What any handler of any logger would print."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name}: {self.format(record)} {record.args!r}")

    @property
    def text(self) -> bytes:
        return "\n".join(self.lines).encode()


@pytest.fixture
def log() -> Iterator[Log]:
    root = logging.getLogger()
    level, log = root.level, Log()
    root.addHandler(log)
    root.setLevel(logging.DEBUG)
    yield log
    root.setLevel(level)
    root.removeHandler(log)


def test_the_sdk_by_itself_logs_keys(log: Log, faults: Faults) -> None:
    # What the tests below would find.
    faults.script = [ok(Plaintext=encoded(KEY), CiphertextBlob=encoded(b"w"))]
    session = boto3.Session("testing", "testing", TOKEN, REGION)
    plain = session.client("kms", endpoint_url=faults.url)
    plain.encrypt(KeyId=KEY_ID, Plaintext=KEY)
    assert encoded(KEY).rstrip("=").encode() in log.text
    assert TOKEN.encode() in log.text
    log.lines.clear()
    plain.generate_data_key(KeyId=KEY_ID, NumberOfBytes=16)
    assert encoded(KEY).rstrip("=").encode() in log.text


LOGGED = {
    "success": ok(Plaintext=encoded(KEY), CiphertextBlob=encoded(b"w")),
    "refused": refusal("AccessDeniedException", "no"),
    "throttled": PASSING["throttled"],
    "hung up": hang_up,
    "slow": slow,
    "cut off": cut_off,
    "garbage with the key": raw(200, b'["' + encoded(KEY).encode() + b'"]'),
    "an error with the key": raw(500, encoded(KEY).encode()),
}


def test_no_key_and_no_token_is_logged(log: Log, faults: Faults, subtests: pytest.Subtests) -> None:
    kms = AwsKms(
        {
            "kms.endpoint": faults.url,
            "kms.max-attempts": "2",
            "kms.read-timeout-ms": "200",
            "client.access-key-id": "AKID",
            "client.secret-access-key": "hunter2/hunter2",
            "client.session-token": TOKEN,
        }
    )
    for name, answer in LOGGED.items():
        with subtests.test(name):
            log.lines.clear()
            faults.script = [answer]
            for call in (
                lambda: kms.wrap_key(KEY, KEY_ID),
                lambda: kms.unwrap_key(b"wrapped", KEY_ID),
                lambda: kms.generate_key(KEY_ID, 16),
            ):
                try:
                    call()
                except KmsError as error:
                    assert name != "success"
                    logging.getLogger("application").exception("failed")
                    assert_clean(error)
            assert b"hidden by ags1" in log.text
            for secret in (*spellings(KEY), TOKEN.encode(), b"hunter2"):
                assert secret not in log.text


def test_no_credential_of_a_role_is_logged(
    log: Log, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", faults.url)
    faults.by_operation = {"AssumeRole": assumed(timedelta(hours=1)), "Encrypt": wrapped_ok}
    faults.kms(client__role_arn=ROLE_ARN).wrap_key(KEY, KEY_ID)
    assert faults.operations == ["AssumeRole", "Encrypt"]
    for secret in (*spellings(KEY), TOKEN.encode(), b"secretoftherole"):
        assert secret not in log.text


def test_no_credential_of_a_container_is_logged(
    log: Log, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The SDK asks for it when a client is made, before any call.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", faults.url)
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    with pytest.raises(KmsAccessDeniedError, match="could not be refreshed") as info:
        faults.kms().wrap_key(KEY, KEY_ID)
    assert_clean(info.value)
    assert b"hidden by ags1" in log.text
    assert b"hunter2" not in log.text


def test_others_log_as_ever_meanwhile(log: Log, faults: Faults) -> None:
    waiting = threading.Event()

    def answer(handler: Handler, request: Request) -> None:
        waiting.set()
        faults.stopping.wait(20)
        wrapped_ok(handler, request)

    faults.script = [answer]
    results: list[bytes] = []
    kms = faults.kms()
    ours = threading.Thread(target=lambda: results.append(kms.wrap_key(KEY, KEY_ID)))
    ours.start()
    assert waiting.wait(20)
    logging.getLogger("botocore.endpoint").debug("of %s", "somebody else")
    faults.stopping.set()
    ours.join(20)
    assert results == [b"wrapped"]
    logging.getLogger("botocore.endpoint").debug("of %s", "ourselves afterwards")
    assert b"of somebody else" in log.text
    assert b"of ourselves afterwards" in log.text


@pytest.mark.parametrize("service", ["KMS", "STS"])
def test_keys_in_the_clear_go_through_no_proxy(
    faults: Faults, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.script = [ok()]
    monkeypatch.setenv("http_proxy", faults.url)
    if service == "KMS":
        kms = AwsKms({"client.region": REGION, "kms.endpoint": "http://127.0.0.1:1"})
    else:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
        kms = AwsKms({"client.region": REGION, **ROLE_PROPERTIES})
    with pytest.raises(KmsConfigurationError, match="NO_PROXY"):
        kms.wrap_key(KEY, KEY_ID)
    assert faults.requests == []


@pytest.mark.parametrize(
    ("environ", "endpoint", "refused"),
    [
        ({"AWS_ENDPOINT_URL_KMS": "http://user:hunter2@kms.test"}, "", True),
        ({"AWS_ENDPOINT_URL": "http://kms.test"}, "", True),
        ({"AWS_ENDPOINT_URL": "http://kms.test"}, "https://kms.test", False),
        (
            {"AWS_ENDPOINT_URL": "http://x.test", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
            "",
            False,
        ),
        ({"AWS_ENDPOINT_URL_STS": "http://sts.test"}, "", True),
        ({"AWS_CONFIG_FILE": "[default]\nendpoint_url = http://kms.test\n"}, "", True),
    ],
)
def test_keys_do_not_cross_the_network_unencrypted_to_an_endpoint_of_the_environment(
    environ: dict[str, str],
    endpoint: str,
    refused: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name, value in environ.items():
        if name == "AWS_CONFIG_FILE":
            (tmp_path / "config").write_text(value)
            value = str(tmp_path / "config")
        monkeypatch.setenv(name, value)
    role = ROLE_PROPERTIES if "AWS_ENDPOINT_URL_STS" in environ else {}
    properties = {"client.region": REGION, "kms.endpoint": endpoint, **role}
    allowed = AwsKms if not refused else lambda given: AwsKms(given | ALLOWED)
    if refused:
        with pytest.raises(KmsConfigurationError, match=r"http://\w+\.test is not https") as caught:
            AwsKms(properties).wrap_key(KEY, KEY_ID)
        assert b"hunter2" not in everything_said(caught.value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureEndpointWarning)
        assert allowed(properties)._connection.get()


ALLOWED = {"kms.allow-plaintext-http": "true"}


@pytest.mark.parametrize(
    ("algorithm", "public"),
    [("", False), ("SYMMETRIC_DEFAULT", False), ("RSAES_OAEP_SHA_256", True), ("SM2PKE", True)],
)
def test_which_algorithms_wrap_with_a_public_key(algorithm: str, public: bool) -> None:
    assert AwsKms({"kms.encryption-algorithm-spec": algorithm}).wraps_with_public_key is public
