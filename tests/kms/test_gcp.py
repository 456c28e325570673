"""Google Cloud KMS: what Google's own library says over TLS to a server built of its messages."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import RunPython
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from kms_contract import (
    KEY,
    KmsContract,
    check_faults,
    check_passing_faults,
    everything_said,
    spellings,
)

from ags1.errors import (
    KmsAccessDeniedError,
    KmsConfigurationError,
    KmsError,
    KmsKeyDisabledError,
    KmsKeyNotFoundError,
    KmsUnavailableError,
    KmsUnwrapError,
)
from ags1.kms import from_properties

pytest.importorskip("google.cloud.kms_v1")
pytest.importorskip("google_crc32c")

from gcp_server import RING, TOKEN, GcpServer, error
from https_server import GARBAGE, HTML, Answer, trusting

from ags1.kms.gcp import GcpKms

SHORT = {"kms.connect-timeout-ms": "500", "kms.read-timeout-ms": "500"}


@pytest.fixture(scope="module", autouse=True)
def no_metadata_server() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_GCE_CHECK", "true")
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent/credentials.json")
        yield


@pytest.fixture(scope="module")
def running() -> Iterator[GcpServer]:
    server = GcpServer()
    with trusting(server):
        yield server
    server.stop()


@pytest.fixture
def server(running: GcpServer) -> GcpServer:
    running.requests.clear()
    running.faults.clear()
    running.corruptions.clear()
    running.keys.clear()
    running.authorization = f"Bearer {TOKEN}"
    running.add_key("main")
    running.add_key("other")
    return running


def properties_for(server: GcpServer, **more: str) -> dict[str, str]:
    given = {"kms.gcp.endpoint": server.url, "gcs.oauth2.token": TOKEN}
    return given | SHORT | {"kms.read-timeout-ms": "5000"} | more


@pytest.fixture
def kms(server: GcpServer) -> Iterator[GcpKms]:
    client = GcpKms(properties_for(server))
    yield client
    client.close()


@pytest.fixture
def key_id() -> str:
    return f"{RING}/cryptoKeys/main"


class TestContract(KmsContract):
    @pytest.fixture
    def other_key_id(self) -> str:
        return f"{RING}/cryptoKeys/other"

    @pytest.fixture
    def missing_key_id(self) -> str:
        return f"{RING}/cryptoKeys/missing"

    @pytest.fixture
    def unreachable(self) -> GcpKms:
        return GcpKms(
            {
                "kms.gcp.endpoint": "http://127.0.0.1:1",
                "kms.gcp.anonymous": "true",
                "kms.max-attempts": "2",
                **SHORT,
            }
        )


def test_what_is_sent_is_javas_request_with_checksums(
    kms: GcpKms, server: GcpServer, key_id: str
) -> None:
    wrapped = kms.wrap_key(KEY, key_id)
    kms.unwrap_key(wrapped, key_id)
    encrypt, decrypt = server.requests
    assert (encrypt.path, decrypt.path) == (f"/v1/{key_id}:encrypt", f"/v1/{key_id}:decrypt")
    assert set(json.loads(encrypt.body)) == {"plaintext", "plaintextCrc32c"}
    assert set(json.loads(decrypt.body)) == {"ciphertext", "ciphertextCrc32c"}
    assert base64.b64decode(json.loads(encrypt.body)["plaintext"]) == KEY
    assert not any(
        form in request.target.encode() for form in spellings(KEY) for request in server.requests
    )


def test_the_registry_knows_it(server: GcpServer, key_id: str) -> None:
    java = "org.apache.iceberg.gcp.GcpKeyManagementClient"
    for name in ({"encryption.kms-type": "gcp"}, {"encryption.kms-impl": java}):
        client = from_properties(properties_for(server) | name)
        assert isinstance(client, GcpKms)
        assert client.unwrap_key(client.wrap_key(KEY, key_id), key_id) == KEY


def test_a_version_wraps_and_every_version_unwraps(
    kms: GcpKms, server: GcpServer, key_id: str
) -> None:
    first = kms.wrap_key(KEY, key_id)
    server.rotate(key_id)
    second = kms.wrap_key(KEY, key_id)
    pinned = kms.wrap_key(KEY, f"{key_id}/cryptoKeyVersions/1")
    assert [wrapped[3] for wrapped in (first, second, pinned)] == [1, 2, 1]
    for wrapped in (first, second, pinned):
        assert kms.unwrap_key(wrapped, key_id) == KEY
        assert kms.unwrap_key(wrapped, f"{key_id}/cryptoKeyVersions/2") == KEY


@pytest.mark.parametrize("corruption", ["request", "ciphertext", "checksum", "unverified"])
def test_a_wrapped_key_changed_on_its_way_is_asked_for_again(
    kms: GcpKms, server: GcpServer, key_id: str, corruption: str
) -> None:
    server.corruptions.extend([corruption, corruption])
    assert kms.unwrap_key(kms.wrap_key(KEY, key_id), key_id) == KEY
    assert len(server.requests) == 4


@pytest.mark.parametrize("corruption", ["request", "plaintext", "checksum"])
def test_a_key_changed_on_its_way_is_asked_for_again(
    kms: GcpKms, server: GcpServer, key_id: str, corruption: str
) -> None:
    wrapped = kms.wrap_key(KEY, key_id)
    server.corruptions.extend([corruption, corruption])
    assert kms.unwrap_key(wrapped, key_id) == KEY
    assert len(server.requests) == 4


@pytest.mark.parametrize("corruption", ["request", "plaintext", "checksum"])
def test_a_wrong_key_never_comes_back(
    kms: GcpKms, server: GcpServer, key_id: str, corruption: str
) -> None:
    wrapped = kms.wrap_key(KEY, key_id)
    server.corruptions.extend([corruption] * 4)
    with pytest.raises(KmsUnavailableError, match="checksums") as caught:
        kms.unwrap_key(wrapped, key_id)
    assert len(server.requests) == 5
    assert not any(form in everything_said(caught.value) for form in spellings(KEY))
    server.corruptions.extend(["unverified"] * 4)
    with pytest.raises(KmsUnavailableError, match="checksums"):
        kms.wrap_key(KEY, key_id)


PASSING = [
    error("UNAVAILABLE"),
    error("RESOURCE_EXHAUSTED", reason="RATE_LIMIT_EXCEEDED"),
    error("DEADLINE_EXCEEDED"),
    error("INTERNAL"),
    Answer(502, GARBAGE, HTML),
    Answer(drop=True),
]
FAULTS: list[tuple[Answer, type[KmsError], int]] = [
    (error("UNAVAILABLE"), KmsUnavailableError, 2),
    (error("RESOURCE_EXHAUSTED", reason="RATE_LIMIT_EXCEEDED"), KmsUnavailableError, 2),
    (error("DEADLINE_EXCEEDED"), KmsUnavailableError, 2),
    (Answer(drop=True), KmsUnavailableError, 2),
    (Answer(stall_s=30), KmsUnavailableError, 2),
    (error("PERMISSION_DENIED"), KmsAccessDeniedError, 1),
    (error("PERMISSION_DENIED", reason="SERVICE_DISABLED"), KmsAccessDeniedError, 1),
    (error("NOT_FOUND"), KmsKeyNotFoundError, 1),
    (error("FAILED_PRECONDITION", "the key's purpose is ASYMMETRIC_SIGN"), KmsError, 1),
    (Answer(200, GARBAGE, HTML), KmsError, 1),
    (Answer(200, b""), KmsError, 1),
    (Answer(200, b"[1]"), KmsError, 1),
    (Answer(200, b"\xff\xfe{"), KmsError, 1),
    (Answer(404, GARBAGE, HTML), KmsError, 1),
    (Answer(403, GARBAGE, HTML), KmsAccessDeniedError, 1),
    (Answer(503, GARBAGE, HTML), KmsUnavailableError, 2),
    (Answer(400, b'"text"'), KmsError, 1),
    (Answer(400, b'{"error": "text"}'), KmsError, 1),
    (Answer(400, b'{"error": {"status": 1, "message": 2}}'), KmsError, 1),
    (
        Answer(400, b'{"error": {"status": "ABC", "message": 2, "details": [1, {}]}}'),
        KmsError,
        1,
    ),
]


def test_trouble_that_passes_is_waited_out(
    kms: GcpKms, server: GcpServer, key_id: str, subtests: pytest.Subtests
) -> None:
    check_passing_faults(kms, server, key_id, PASSING, subtests)


def test_each_fault_has_its_error(
    server: GcpServer, key_id: str, subtests: pytest.Subtests
) -> None:
    client = GcpKms(properties_for(server) | SHORT | {"kms.max-attempts": "2"})
    for fault, raised in check_faults(client, server, key_id, FAULTS, TOKEN, subtests):
        if b"RATE_LIMIT_EXCEEDED" in fault.body:
            assert "RESOURCE_EXHAUSTED, RATE_LIMIT_EXCEEDED" in str(raised)


def test_an_answer_that_repeats_the_request_is_not_quoted(
    kms: GcpKms, server: GcpServer, key_id: str
) -> None:
    secret = base64.b64encode(KEY).decode()
    server.faults.append(error("INVALID_ARGUMENT", f"what is {secret}?", reason=secret))
    with pytest.raises(KmsError) as caught:
        kms.wrap_key(KEY, key_id)
    assert not any(form in everything_said(caught.value) for form in spellings(KEY))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_key_is_not_sent_where_the_endpoint_points(
    kms: GcpKms, server: GcpServer, key_id: str, status: int
) -> None:
    server.faults.append(Answer(status, headers={"Location": f"{server.url}/v1/elsewhere"}))
    with pytest.raises(KmsError, match="points elsewhere"):
        kms.wrap_key(KEY, key_id)
    assert len(server.requests) == 1


def test_a_disabled_version_is_said_to_be(kms: GcpKms, server: GcpServer, key_id: str) -> None:
    wrapped = kms.wrap_key(KEY, key_id)
    server.disable(key_id, 1)
    with pytest.raises(KmsKeyDisabledError, match="DISABLED"):
        kms.wrap_key(KEY, key_id)
    with pytest.raises(KmsKeyDisabledError, match="FAILED_PRECONDITION"):
        kms.unwrap_key(wrapped, key_id)


@pytest.mark.parametrize(
    "key_id",
    [
        "main",
        "alias/main",
        "projects/p/locations/l/keyRings/r",
        f"{RING}/cryptoKeys/main/cryptoKeyVersions/",
        f"{RING}/cryptoKeys/main:decrypt",
        f"{RING}/cryptoKeys/main?x=y",
        f"{RING}/cryptoKeys/../main",
        f"{RING}/cryptoKeys/main\n",
        f"/{RING}/cryptoKeys/main",
    ],
)
def test_what_is_no_keys_name_is_not_sent(kms: GcpKms, server: GcpServer, key_id: str) -> None:
    for call in (lambda: kms.wrap_key(KEY, key_id), lambda: kms.unwrap_key(b"x", key_id)):
        with pytest.raises(KmsKeyNotFoundError, match="is not the name of a key"):
            call()
    assert not server.requests


class TestCredentials:
    def test_a_token_goes_with_each_request(
        self, kms: GcpKms, server: GcpServer, key_id: str
    ) -> None:
        kms.wrap_key(KEY, key_id)
        assert server.requests[0].headers["authorization"] == f"Bearer {TOKEN}"

    def test_a_token_that_is_refused(self, kms: GcpKms, server: GcpServer, key_id: str) -> None:
        server.authorization = "Bearer another"
        with pytest.raises(KmsAccessDeniedError, match="expired or is not accepted") as caught:
            kms.wrap_key(KEY, key_id)
        assert TOKEN.encode() not in everything_said(caught.value)

    def test_an_expired_token_is_not_sent(self, server: GcpServer, key_id: str) -> None:
        past = str(int(time.time() * 1000) - 60_000)
        client = GcpKms(properties_for(server) | {"gcs.oauth2.token-expires-at": past})
        with pytest.raises(KmsAccessDeniedError, match="expired"):
            client.wrap_key(KEY, key_id)
        assert not server.requests
        future = str(int(time.time() * 1000) + 3_600_000)
        client = GcpKms(properties_for(server) | {"gcs.oauth2.token-expires-at": future})
        assert client.wrap_key(KEY, key_id)

    def test_without_credentials_access_is_denied(self, server: GcpServer, key_id: str) -> None:
        client = GcpKms({"kms.gcp.endpoint": server.url})
        with pytest.raises(KmsAccessDeniedError, match="application default"):
            client.wrap_key(KEY, key_id)
        assert not server.requests

    def test_a_service_accounts_file_signs(
        self, server: GcpServer, key_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        account = rsa.generate_private_key(65537, 2048)
        pem = account.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path = tmp_path / "account.json"
        document = {
            "type": "service_account",
            "project_id": "test-project",
            "private_key_id": "1",
            "private_key": pem.decode(),
            "client_email": "reader@test-project.iam.gserviceaccount.com",
            "token_uri": f"{server.url}/token",
        }
        path.write_text(json.dumps(document))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        server.authorization = None
        client = GcpKms({"kms.gcp.endpoint": server.url})
        assert client.unwrap_key(client.wrap_key(KEY, key_id), key_id) == KEY
        jwt = server.requests[0].headers["authorization"].removeprefix("Bearer ")
        signed, _, signature = jwt.rpartition(".")
        account.public_key().verify(
            base64.urlsafe_b64decode(signature + "=="),
            signed.encode(),
            padding.PKCS1v15(),
            hashes.SHA256(),
        )
        restored = pickle.loads(pickle.dumps(client))
        assert restored.unwrap_key(restored.wrap_key(KEY, key_id), key_id) == KEY

    @pytest.mark.parametrize("status", ["UNAUTHENTICATED", "PERMISSION_DENIED"])
    def test_default_credentials_are_looked_up_again_after_a_refusal(
        self, server: GcpServer, key_id: str, monkeypatch: pytest.MonkeyPatch, status: str
    ) -> None:
        import google.auth
        from google.oauth2.credentials import Credentials

        found: list[str] = []

        def default(*_: object, **options: object) -> tuple[Credentials, str]:
            found.append(f"token-{len(found) + 1}")
            return Credentials(token=found[-1]), "test-project"

        monkeypatch.setattr(google.auth, "default", default)
        client = GcpKms({"kms.gcp.endpoint": server.url})
        server.authorization = "Bearer token-1"
        wrapped = client.wrap_key(KEY, key_id)
        server.authorization = "Bearer token-2"
        server.faults.append(error(status))
        assert client.unwrap_key(wrapped, key_id) == KEY
        server.faults.extend([error(status)] * 2)
        with pytest.raises(KmsAccessDeniedError):
            client.unwrap_key(wrapped, key_id)
        assert not server.faults
        assert len(found) == 3

    def test_a_token_is_neither_shown_nor_pickled(self, kms: GcpKms) -> None:
        assert TOKEN not in repr(kms) + str(kms) + repr(vars(kms))
        with pytest.raises(TypeError, match=r"gcs\.oauth2\.token"):
            pickle.dumps(kms)

    def test_a_server_that_is_not_trusted_gets_nothing(
        self, kms: GcpKms, server: GcpServer, key_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("REQUESTS_CA_BUNDLE")
        with pytest.raises(KmsConfigurationError, match="not trusted"):
            kms.wrap_key(KEY, key_id)
        assert not server.requests


class TestEndpoint:
    def test_an_emulator_at_a_loopback_address_gets_no_credentials(self) -> None:
        server = GcpServer(tls=False)
        server.authorization = None
        key_id = server.add_key("main")
        try:
            client = GcpKms({"kms.gcp.endpoint": server.url, "kms.gcp.anonymous": "true"})
            assert client.unwrap_key(client.wrap_key(KEY, key_id), key_id) == KEY
            assert "authorization" not in server.requests[0].headers
        finally:
            server.stop()

    def test_not_through_a_proxy(self, monkeypatch: pytest.MonkeyPatch, key_id: str) -> None:
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        client = GcpKms({"kms.gcp.endpoint": "http://127.0.0.1:2", "kms.gcp.anonymous": "true"})
        with pytest.raises(KmsConfigurationError, match="NO_PROXY"):
            client.wrap_key(KEY, key_id)

    @pytest.mark.parametrize(
        "endpoint",
        [
            "http://kms.example.com",
            "http://10.0.0.1:8080",
            "http://127.0.0.1@kms.example.com",
            "http://127.0.0.1.example.com",
            "ftp://127.0.0.1",
            "https://user:password@127.0.0.1",
            "https://127.0.0.1/path",
            "https://127.0.0.1?query",
            "127.0.0.1:port",
            "https://",
            "a b",
        ],
    )
    def test_an_endpoint_that_is_not_safe_is_refused(self, endpoint: str) -> None:
        with pytest.raises(KmsConfigurationError, match=r"kms\.gcp\.endpoint|not https") as caught:
            GcpKms({"kms.gcp.endpoint": endpoint, "kms.gcp.anonymous": "true"})
        assert "password" not in str(caught.value)

    @pytest.mark.parametrize(
        "properties",
        [
            {"kms.gcp.endpoint": "http://127.0.0.1:1"},
            {"kms.gcp.endpoint": "http://127.0.0.1:1", "gcs.oauth2.token": TOKEN},
            {"kms.gcp.anonymous": "true", "gcs.oauth2.token": TOKEN},
            {"kms.gcp.anonymous": "yes"},
            {"gcs.oauth2.token-expires-at": "tomorrow"},
            {"kms.max-attempts": "0"},
        ],
    )
    def test_wrong_properties_are_refused_at_once(self, properties: dict[str, str]) -> None:
        with pytest.raises(KmsConfigurationError) as caught:
            GcpKms(properties)
        assert TOKEN not in str(caught.value)


class TestLogs:
    @pytest.fixture
    def logged(self) -> Iterator[Callable[[], bytes]]:
        """All that any handler could print, the records' extra fields included."""
        from google.cloud.kms_v1.services.key_management_service.transports import rest

        if not hasattr(rest, "CLIENT_LOGGING_SUPPORTED"):
            pytest.skip("this version of Google's library does not log calls")
        records: list[logging.LogRecord] = []

        class Keeper(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                records.append(record)

        keeper = Keeper(logging.DEBUG)
        # Google's library takes its loggers out of the root's reach.
        loggers = [logging.getLogger(name) for name in ("", "google", "google.auth")]
        before = [(one.level, one.propagate) for one in loggers]
        for one in loggers:
            one.setLevel(logging.DEBUG)
            one.addHandler(keeper)
        yield lambda: "".join(repr(vars(record)) for record in records).encode()
        for one, (level, propagate) in zip(loggers, before, strict=True):
            one.removeHandler(keeper)
            one.setLevel(level)
            one.propagate = propagate

    def test_no_field_of_a_log_record_holds_a_key(
        self, kms: GcpKms, server: GcpServer, key_id: str, logged: Callable[[], bytes]
    ) -> None:
        wrapped = kms.wrap_key(KEY, key_id)
        assert kms.unwrap_key(wrapped, key_id) == KEY
        server.faults.extend([error("UNAVAILABLE"), Answer(200, GARBAGE, HTML)])
        with pytest.raises(KmsError):
            kms.wrap_key(KEY, key_id)
        said = logged()
        # That it was listened to at all: the library's own record of the call.
        assert b"'rpcName': 'Encrypt'" in said
        assert b"'rpcName': 'Decrypt'" in said
        assert b"Making request" in said
        assert not any(form in said for form in spellings(KEY))
        assert b"Bearer" not in said

    def test_the_library_would_have_logged_it(
        self, server: GcpServer, key_id: str, logged: Callable[[], bytes]
    ) -> None:
        """When this fails, the library has stopped, and hiding it can go."""
        from ags1.kms import gcp

        names = (
            "google.cloud.kms_v1.services.key_management_service.transports.rest",
            "google.auth.transport.requests",
        )
        client = GcpKms(properties_for(server))
        client.wrap_key(KEY, key_id)
        for name in names:
            logging.getLogger(name).removeFilter(gcp._hide_bodies)
        try:
            client.wrap_key(KEY, key_id)
        finally:
            gcp._hide_bodies_in_logs()
        assert base64.b64encode(KEY).rstrip(b"=") in logged()


GRPC_SERVER = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc
server = grpc.server(ThreadPoolExecutor(1))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
"""

# In a process of its own: what gRPC does at a fork goes by how it was imported.
GRPC_PARENT = """
import os, sys, threading, time
import grpc
from ags1.kms.gcp import GcpKms

port, url, key_id, token, busy = sys.argv[1:]
channel = grpc.insecure_channel(f"127.0.0.1:{port}")
grpc.channel_ready_future(channel).result(30)
call = channel.unary_unary("/nothing/Nothing")

def speak():
    while True:
        try:
            call(b"", timeout=10)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED

if busy == "True":
    threading.Thread(target=speak, daemon=True).start()
    time.sleep(0.1)
kms = GcpKms({"kms.gcp.endpoint": url, "gcs.oauth2.token": token})
wrapped = kms.wrap_key(b"k" * 16, key_id)
for _ in range(3):
    child = os.fork()
    if not child:
        code = 1
        try:
            assert kms.unwrap_key(wrapped, key_id) == b"k" * 16
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
assert kms.unwrap_key(wrapped, key_id) == b"k" * 16
os._exit(0)
"""


# Not ("1", True): there gRPC's own handler hangs in a child that does nothing at all.
# Of `make test`: a child's clients of each KMS, without gRPC.
@pytest.mark.slow_variants(r"None-True")
@pytest.mark.parametrize(
    ("fork_support", "busy"),
    [
        pytest.param("0", False, marks=pytest.mark.slow),
        pytest.param("0", True, marks=pytest.mark.slow),
        pytest.param("1", False, marks=pytest.mark.slow),
        (None, True),
    ],
)
def test_a_child_of_a_process_that_speaks_grpc_unwraps(
    server: GcpServer,
    key_id: str,
    run_python: RunPython,
    monkeypatch: pytest.MonkeyPatch,
    fork_support: str | None,
    busy: bool,
) -> None:
    """A gRPC client would hang there but for ("1", False)."""
    pytest.importorskip("grpc")
    monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT", raising=False)
    if fork_support:
        monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", fork_support)
    with subprocess.Popen(
        [sys.executable, "-c", GRPC_SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as speaking:
        assert speaking.stdin is not None
        assert speaking.stdout is not None
        try:
            port = speaking.stdout.readline().strip()
            run_python(GRPC_PARENT, port, server.url, key_id, TOKEN, busy, timeout=60)
        finally:
            speaking.stdin.close()
    assert len(server.requests) == 5


def test_a_wrapped_key_of_anothers_is_refused(kms: GcpKms, key_id: str) -> None:
    with pytest.raises(KmsUnwrapError, match="another key wrapped it"):
        kms.unwrap_key(b"\0" * 200, key_id)
