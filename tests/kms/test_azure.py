"""Azure Key Vault: what Microsoft's own SDK says over TLS to a server with real RSA keys."""

from __future__ import annotations

import base64
import logging
import pickle
import time
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
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

pytest.importorskip("azure.keyvault.keys")
pytest.importorskip("azure.identity")

from azure.core.credentials import AccessToken
from azure.keyvault.keys import KeyClient
from azure.keyvault.keys.crypto import KeyWrapAlgorithm
from azure_server import IDENTITY_HEADER, TOKEN, AzureServer, error
from https_server import GARBAGE, HTML, Answer, Request, trusting

from ags1.kms.azure import AzureKms

SHORT = {"kms.connect-timeout-ms": "500", "kms.read-timeout-ms": "500"}
OAEP_256 = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)


@pytest.fixture(scope="module", autouse=True)
def no_metadata_server() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # Of all the ways to credentials, only that of the environment; and nothing is in it.
        patch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
        for name in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module")
def running() -> Iterator[AzureServer]:
    server = AzureServer()
    with trusting(server):
        yield server
    server.stop()


@pytest.fixture
def server(running: AzureServer) -> AzureServer:
    running.requests.clear()
    running.faults.clear()
    running.keys.clear()
    running.forbidden.clear()
    running.token = TOKEN
    running.resource = running.own_resource
    running.add_key("main")
    running.add_key("other")
    return running


def properties_for(server: AzureServer, **more: str) -> dict[str, str]:
    return {"azure.keyvault.url": server.url, "kms.azure.token": TOKEN, **more}


@pytest.fixture
def kms(server: AzureServer) -> Iterator[AzureKms]:
    client = AzureKms(properties_for(server))
    yield client
    client.close()


@pytest.fixture
def key_id() -> str:
    return "main"


class TestContract(KmsContract):
    @pytest.fixture
    def other_key_id(self) -> str:
        return "other"

    @pytest.fixture
    def missing_key_id(self) -> str:
        return "missing"

    @pytest.fixture
    def unreachable(self) -> AzureKms:
        return AzureKms(
            {
                "azure.keyvault.url": "https://127.0.0.1:1",
                "kms.azure.token": TOKEN,
                "kms.max-attempts": "2",
                **SHORT,
            }
        )


class _Credential:
    def get_token(self, *scopes: str, **options: object) -> AccessToken:
        return AccessToken(TOKEN, int(time.time()) + 3600)


def test_microsofts_client_reads_ours_and_we_its(kms: AzureKms, server: AzureServer) -> None:
    """Java's client is written as this one is, by the same company to the same scheme."""
    with KeyClient(server.url, _Credential()) as theirs:
        cryptography_client = theirs.get_cryptography_client("main")
        algorithm = KeyWrapAlgorithm.rsa_oaep_256
        wrapped = cryptography_client.wrap_key(algorithm, KEY).encrypted_key
        assert kms.unwrap_key(wrapped, "main") == KEY
        ours = kms.wrap_key(KEY, "main")
        assert cryptography_client.unwrap_key(algorithm, ours).key == KEY


def test_a_wrapped_key_is_the_bare_ciphertext(kms: AzureKms, server: AzureServer) -> None:
    private_key = server.keys["main"].versions[0].key
    wrapped = kms.wrap_key(KEY, "main")
    assert len(wrapped) == 256
    assert private_key.decrypt(wrapped, OAEP_256) == KEY
    assert kms.unwrap_key(private_key.public_key().encrypt(KEY, OAEP_256), "main") == KEY


def test_the_vault_wraps_and_nothing_else_is_asked(kms: AzureKms, server: AzureServer) -> None:
    server.forbidden |= {"get", "list", "unwrapKey"}
    wrapped = kms.wrap_key(KEY, "main")
    server.forbidden = {"get", "list", "wrapKey"}
    assert kms.unwrap_key(wrapped, "main") == KEY
    assert server.calls() == ["POST /keys/main/wrapkey", "POST /keys/main/unwrapkey"]


def test_no_key_is_sent_before_the_token() -> None:
    # The SDK remembers challenges by address: this server is new to it.
    server = AzureServer()
    server.add_key("main")
    try:
        with trusting(server):
            AzureKms(properties_for(server)).wrap_key(KEY, "main")
        first, second = server.requests
        assert (first.path, first.body) == (second.path, b"")
        assert "authorization" not in first.headers
        assert second.headers["authorization"] == f"Bearer {TOKEN}"
    finally:
        server.stop()


def test_the_registry_knows_it(server: AzureServer) -> None:
    java = "org.apache.iceberg.azure.keymanagement.AzureKeyManagementClient"
    for name in ({"encryption.kms-type": "azure"}, {"encryption.kms-impl": java}):
        client = from_properties(properties_for(server) | name)
        assert isinstance(client, AzureKms)
        assert client.unwrap_key(client.wrap_key(KEY, "main"), "main") == KEY


class TestAlgorithms:
    def test_rsa_oaep(self, server: AzureServer) -> None:
        client = AzureKms(
            properties_for(server, **{"azure.keyvault.key-wrap-algorithm": "RSA-OAEP"})
        )
        wrapped = client.wrap_key(KEY, "main")
        assert client.unwrap_key(wrapped, "main") == KEY
        sha1 = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)
        assert server.keys["main"].versions[0].key.decrypt(wrapped, sha1) == KEY
        with pytest.raises(KmsUnwrapError, match="RSA-OAEP-256"):
            AzureKms(properties_for(server)).unwrap_key(wrapped, "main")

    def test_rsa1_5_only_unwraps(self, server: AzureServer) -> None:
        client = AzureKms(properties_for(server, **{"azure.keyvault.key-wrap-algorithm": "RSA1_5"}))
        public_key = server.keys["main"].versions[0].key.public_key()
        wrapped = public_key.encrypt(KEY, padding.PKCS1v15())
        assert client.unwrap_key(wrapped, "main") == KEY
        with pytest.raises(KmsConfigurationError, match="RSA-OAEP-256"):
            client.wrap_key(KEY, "main")

    def test_one_that_the_key_does_not_have(self, server: AzureServer) -> None:
        client = AzureKms(properties_for(server, **{"azure.keyvault.key-wrap-algorithm": "A256KW"}))
        with pytest.raises(KmsError, match="BadParameter"):
            client.wrap_key(KEY, "main")


class TestVersions:
    def test_an_older_version_unwraps_what_it_wrapped(
        self, kms: AzureKms, server: AzureServer
    ) -> None:
        wrapped = [kms.wrap_key(KEY, "main")]
        for _ in range(3):
            server.add_version("main")
            wrapped.append(kms.wrap_key(KEY, "main"))
        assert [kms.unwrap_key(one, "main") for one in wrapped] == [KEY] * 4

    def test_a_version_in_the_key_id_is_the_only_one(
        self, kms: AzureKms, server: AzureServer
    ) -> None:
        first = server.keys["main"].versions[0].version
        second = server.add_version("main")
        wrapped = kms.wrap_key(KEY, f"main/{first}")
        for key_id in ("main", f"main/{first}", f"{server.url}/keys/main/{first}"):
            assert kms.unwrap_key(wrapped, key_id) == KEY
        with pytest.raises(KmsUnwrapError):
            kms.unwrap_key(wrapped, f"main/{second}")
        with pytest.raises(KmsKeyNotFoundError):
            kms.wrap_key(KEY, f"main/{'0' * 32}")

    def test_a_disabled_latest_version_still_lets_an_older_one_unwrap(
        self, kms: AzureKms, server: AzureServer
    ) -> None:
        wrapped = kms.wrap_key(KEY, "main")
        server.add_version("main")
        server.keys["main"].versions[1].enabled = False
        assert kms.unwrap_key(wrapped, "main") == KEY
        with pytest.raises(KmsKeyDisabledError, match="KeyDisabled"):
            kms.wrap_key(KEY, "main")

    def test_a_disabled_older_version_does_not_unwrap(
        self, kms: AzureKms, server: AzureServer
    ) -> None:
        wrapped = kms.wrap_key(KEY, "main")
        server.add_version("main")
        server.keys["main"].versions[0].enabled = False
        with pytest.raises(KmsUnwrapError):
            kms.unwrap_key(wrapped, "main")
        server.keys["main"].versions[1].enabled = False
        with pytest.raises(KmsKeyDisabledError):
            kms.unwrap_key(wrapped, "main")

    def test_who_may_not_list_is_told(self, kms: AzureKms, server: AzureServer) -> None:
        wrapped = kms.wrap_key(KEY, "main")
        server.add_version("main")
        server.forbidden.add("list")
        with pytest.raises(KmsUnwrapError, match="may not list") as caught:
            kms.unwrap_key(wrapped, "main")
        assert caught.value.__context__ is None

    def test_all_versions_are_tried_and_counted(self, kms: AzureKms, server: AzureServer) -> None:
        wrapped = kms.wrap_key(KEY, "main")
        for _ in range(30):
            server.add_version("main")
        assert kms.unwrap_key(wrapped, "main") == KEY
        with pytest.raises(KmsUnwrapError, match="31 enabled versions was tried"):
            kms.unwrap_key(bytes(256), "main")

    def test_trouble_while_looking_is_not_a_wrong_key(
        self, kms: AzureKms, server: AzureServer
    ) -> None:
        wrapped = kms.wrap_key(KEY, "main")
        server.add_version("main")

        def broken(request: Request) -> Answer | None:
            server.faults.appendleft(broken)
            return error(503, "ServiceUnavailable") if request.path.endswith("versions") else None

        server.faults.append(broken)
        with pytest.raises(KmsUnavailableError):
            kms.unwrap_key(wrapped, "main")


class TestKeyIds:
    @pytest.mark.parametrize(
        "key_id",
        [
            "",
            "a b",
            "main/",
            "main/../other",
            "main/0/1",
            "main?api-version=1",
            "main#x",
            "../secrets",
            "main\n",
            "m\u0430in",
            "{}/keys/",
            "{}/keys/main/v/x",
            "{}/keys/../secrets/main",
        ],
    )
    def test_what_is_no_keys_name_is_not_sent(
        self, kms: AzureKms, server: AzureServer, key_id: str
    ) -> None:
        given = key_id.format(server.url)
        for call in (lambda: kms.wrap_key(KEY, given), lambda: kms.unwrap_key(b"x", given)):
            with pytest.raises(KmsKeyNotFoundError, match="is not the name of a key"):
                call()
        assert not server.requests

    @pytest.mark.parametrize(
        "key_id",
        [
            "https://evil.example/keys/main",
            "{}.evil.example/keys/main",
            "{}@evil.example/keys/main",
            "{}0/keys/main",
            "https://user@127.0.0.1/keys/main",
            "http://127.0.0.1/keys/main",
            "{}/secrets/main",
            "{}/KEYS/main",
            "https://127.0.0.1/keys/main",
        ],
    )
    def test_a_key_of_another_vault_is_not_asked_for(
        self, kms: AzureKms, server: AzureServer, key_id: str
    ) -> None:
        with pytest.raises(KmsConfigurationError, match="no other vault is asked"):
            kms.wrap_key(KEY, key_id.format(server.url))
        assert not server.requests

    def test_the_whole_identifier_is_a_key_id(self, kms: AzureKms, server: AzureServer) -> None:
        wrapped = kms.wrap_key(KEY, f"{server.url}/keys/main")
        assert kms.unwrap_key(wrapped, f"{server.url.replace('https', 'HTTPS')}/keys/main") == KEY


PASSING = [
    error(503, "ServiceUnavailable"),
    error(429, "Throttled"),
    Answer(429, error(429, "Throttled").body, {"Retry-After": "0"}),
    error(500, "InternalError"),
    Answer(502, GARBAGE, HTML),
    Answer(drop=True),
]
FAULTS: list[tuple[Answer, type[KmsError], int]] = [
    (error(503, "ServiceUnavailable"), KmsUnavailableError, 2),
    (error(429, "Throttled"), KmsUnavailableError, 2),
    (Answer(drop=True), KmsUnavailableError, 2),
    (Answer(stall_s=30), KmsUnavailableError, 2),
    (error(403, "Forbidden", "ForbiddenByRbac"), KmsAccessDeniedError, 1),
    (error(403, "Forbidden", "ForbiddenByFirewall"), KmsAccessDeniedError, 1),
    (error(403, "Forbidden", "KeyDisabled"), KmsKeyDisabledError, 1),
    (error(401, "Unauthorized"), KmsAccessDeniedError, 1),
    (error(404, "KeyNotFound"), KmsKeyNotFoundError, 1),
    (error(409, "Conflict", "ObjectIsDeletedButRecoverable"), KmsError, 1),
    (Answer(200, GARBAGE, HTML), KmsError, 1),
    (Answer(200, GARBAGE), KmsError, 1),
    (Answer(200, b""), KmsError, 1),
    (Answer(200, b"[1]"), KmsError, 1),
    (Answer(200, b'{"value": 1}'), KmsError, 1),
    (Answer(200, b'{"value": "not base64url!"}'), KmsError, 1),
    (Answer(200, b'{"value": "A"}'), KmsError, 1),
    (Answer(200, b'{"value": ""}'), KmsError, 1),
    (Answer(200, b"\xff\xfe{"), KmsError, 1),
    (Answer(307, b"", {"Location": "https://127.0.0.1:1/keys/main/wrapkey"}), KmsError, 1),
    (Answer(302, b"", {"Location": "https://127.0.0.1:1/keys/main/wrapkey"}), KmsError, 1),
    (Answer(404, GARBAGE, HTML), KmsError, 1),
    (Answer(403, GARBAGE, HTML), KmsError, 1),
    (Answer(400, b'{"error": "text"}'), KmsError, 1),
    (Answer(400, b'{"error": {"code": 1, "innererror": [2]}}'), KmsError, 1),
]


class TestFaults:
    def test_trouble_that_passes_is_waited_out(
        self, kms: AzureKms, server: AzureServer, subtests: pytest.Subtests
    ) -> None:
        check_passing_faults(kms, server, "main", PASSING, subtests)

    def test_each_fault_has_its_error(self, server: AzureServer, subtests: pytest.Subtests) -> None:
        client = AzureKms(properties_for(server) | SHORT | {"kms.max-attempts": "2"})
        for _, raised in check_faults(client, server, "main", FAULTS, TOKEN, subtests):
            assert "'main'" in str(raised)
            assert server.url in str(raised)

    def test_an_answer_that_repeats_the_request_is_not_quoted(
        self, kms: AzureKms, server: AzureServer
    ) -> None:
        secret = base64.urlsafe_b64encode(KEY).rstrip(b"=").decode()
        kms.wrap_key(KEY, "main")
        server.faults.append(error(400, secret, secret, f"what is {secret}?"))
        with pytest.raises(KmsError) as caught:
            kms.wrap_key(KEY, "main")
        said = everything_said(caught.value)
        assert not any(form in said for form in [*spellings(KEY), secret.encode()])

    def test_an_attacked_services_long_pause_is_cut_short(self) -> None:
        # The pause itself would be ten seconds.
        from azure.core.pipeline import PipelineContext, PipelineResponse
        from azure.core.rest import HttpRequest

        client = AzureKms({"azure.keyvault.url": "https://127.0.0.1:1", "kms.azure.token": TOKEN})
        policy = client._connection.get()[0]._client._config.retry_policy

        class Throttled:
            headers = {"Retry-After": "3600"}  # noqa: RUF012

        response = PipelineResponse(
            HttpRequest("GET", "https://127.0.0.1:1"), Throttled(), PipelineContext(None)
        )
        assert policy.get_retry_after(response) == 10


class TestCredentials:
    def test_a_token_that_is_refused(self, kms: AzureKms, server: AzureServer) -> None:
        server.token = "another"
        with pytest.raises(KmsAccessDeniedError, match="401") as caught:
            kms.wrap_key(KEY, "main")
        assert TOKEN.encode() not in everything_said(caught.value)

    def test_no_token_for_a_server_that_asks_for_anothers(self) -> None:
        # The SDK remembers challenges by address: this server is new to it.
        server = AzureServer()
        server.add_key("main")
        server.resource = "https://vault.example"
        try:
            with trusting(server):
                client = AzureKms(properties_for(server))
                with pytest.raises(KmsAccessDeniedError, match="not for it"):
                    client.wrap_key(KEY, "main")
            assert server.requests
            assert not server.calls()
        finally:
            server.stop()

    def test_without_credentials_access_is_denied(self, server: AzureServer) -> None:
        client = AzureKms({"azure.keyvault.url": server.url})
        with pytest.raises(KmsAccessDeniedError, match="DefaultAzureCredential"):
            client.wrap_key(KEY, "main")
        assert not server.calls()

    def test_a_managed_identity(self, server: AzureServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{server.url}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", IDENTITY_HEADER)
        client = AzureKms({"azure.keyvault.url": server.url})
        assert client.unwrap_key(client.wrap_key(KEY, "main"), "main") == KEY
        assert any(request.path == "/msi/token" for request in server.requests)
        restored = pickle.loads(pickle.dumps(client))
        assert restored.unwrap_key(restored.wrap_key(KEY, "main"), "main") == KEY

    def test_an_identity_is_looked_up_again_after_a_refusal(
        self, server: AzureServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{server.url}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", IDENTITY_HEADER)
        client = AzureKms({"azure.keyvault.url": server.url})
        wrapped = client.wrap_key(KEY, "main")
        server.token = "another.token"
        assert client.unwrap_key(wrapped, "main") == KEY
        server.forbidden.add("unwrapKey")
        fixed = AzureKms(properties_for(server, **{"kms.azure.token": server.token}))
        for kms, count in ((client, 2), (fixed, 1)):
            server.requests.clear()
            with pytest.raises(KmsAccessDeniedError):
                kms.unwrap_key(wrapped, "main")
            asked = [call for call in server.calls() if call.endswith("unwrapkey")]
            assert len(asked) == count

    def test_a_token_is_neither_shown_nor_pickled(self, kms: AzureKms) -> None:
        kms.wrap_key(KEY, "main")
        assert TOKEN not in repr(kms) + str(kms) + repr(vars(kms))
        with pytest.raises(TypeError, match=r"kms\.azure\.token"):
            pickle.dumps(kms)

    def test_a_server_that_is_not_trusted_gets_nothing(
        self, kms: AzureKms, server: AzureServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("REQUESTS_CA_BUNDLE")
        with pytest.raises(KmsConfigurationError, match="trusted"):
            kms.wrap_key(KEY, "main")
        assert not server.requests


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"azure.keyvault.url": "http://127.0.0.1:8443"},
        {"azure.keyvault.url": "vault.example"},
        {"azure.keyvault.url": "https://user:password@vault.example"},
        {"azure.keyvault.url": "https://vault.example/keys"},
        {"azure.keyvault.url": "https://vault.example\\@evil.example"},
        {"azure.keyvault.url": "https://vault.example:port"},
        {
            "azure.keyvault.url": "https://vault.example",
            "azure.keyvault.key-wrap-algorithm": "ROT13",
        },
        {
            "azure.keyvault.url": "https://vault.example",
            "adls.token-credential-provider": "com.example.Provider",
        },
        {"azure.keyvault.url": "https://vault.example", "kms.read-timeout-ms": "soon"},
    ],
)
def test_wrong_properties_are_refused_at_once(properties: dict[str, str]) -> None:
    with pytest.raises(KmsConfigurationError) as caught:
        AzureKms(properties)
    assert "password" not in str(caught.value)


@pytest.mark.parametrize("identity", ["token", "managed"])
def test_no_field_of_a_log_record_holds_a_key(
    server: AzureServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    identity: str,
) -> None:
    properties = properties_for(server)
    if identity == "managed":
        del properties["kms.azure.token"]
        monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{server.url}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", IDENTITY_HEADER)
    client = AzureKms(properties)
    with caplog.at_level(logging.DEBUG):
        wrapped = client.wrap_key(KEY, "main")
        assert client.unwrap_key(wrapped, "main") == KEY
        server.faults.extend([error(503, "ServiceUnavailable"), Answer(200, GARBAGE, HTML)])
        with pytest.raises(KmsError):
            client.wrap_key(KEY, "main")
    said = "".join(repr(vars(record)) + record.getMessage() for record in caplog.records).encode()
    # That it was listened to at all.
    assert b"wrapkey" in said
    assert b"azure.core.pipeline.policies.http_logging_policy" in said
    unpadded = base64.urlsafe_b64encode(KEY).rstrip(b"=")
    assert not any(form in said for form in [*spellings(KEY), unpadded])
    assert TOKEN.encode() not in said
    assert IDENTITY_HEADER.encode() not in said


@pytest.mark.parametrize(
    ("algorithm", "public"),
    [("", True), ("RSA-OAEP", True), ("RSA1_5", True), ("A256KW", False)],
)
def test_which_algorithms_wrap_with_a_public_key(algorithm: str, public: bool) -> None:
    kms = AzureKms(
        {
            "azure.keyvault.url": "https://vault.example",
            "azure.keyvault.key-wrap-algorithm": algorithm,
        }
    )
    assert kms.wraps_with_public_key is public
