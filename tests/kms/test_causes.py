"""A service that could not be asked: each cause has the same kind of error, and the same words, in
the client of every service. The servers fail as TLS and files do; nothing here knows the clients'
libraries."""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from https_server import Answer, Request, Server
from leaks import variables_with

from ags1.errors import (
    KmsAccessDeniedError,
    KmsConfigurationError,
    KmsError,
    KmsUnavailableError,
)
from ags1.keys import KeyEncryptionKey
from ags1.kms import from_properties

# With aws_server, botocore parses its files once for all clients.
for library in ("aws_server", "boto3", "requests", "google.cloud.kms_v1", "azure.keyvault.keys"):
    pytest.importorskip(library)

KEY = bytes(32)
GCP_KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
# What each client needs besides the address, the property of the address, and the name of a key.
SERVICES = {
    "aws": ("kms.endpoint", "alias/a", {"client.region": "eu-west-1"}),
    "azure": ("azure.keyvault.url", "main", {"kms.azure.token": "t"}),
    "gcp": ("kms.gcp.endpoint", GCP_KEY, {"gcs.oauth2.token": "t"}),
    "vault": ("kms.vault.url", "orders", {"kms.vault.token": "t"}),
}


class Silent(Server):
    def answer(self, request: Request) -> Answer:
        return Answer(200, b"{}")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "VAULT_", "GOOGLE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIA",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "HOME": str(tmp_path),
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Silent]]:
    """Start a server whose certificate all clients trust."""
    servers: list[Silent] = []

    def start(**options: object) -> Silent:
        servers.append(Silent(**options))  # type: ignore[arg-type]
        for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "VAULT_CACERT"):
            if os.path.exists(servers[-1].certificate):
                monkeypatch.setenv(name, servers[-1].certificate)
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def failure(service: str, url: str, **more: str) -> KmsError:
    """Return the error of a call to the service at ``url``."""
    address, key_id, given = SERVICES[service]
    properties = {"encryption.kms-type": service, address: url, "kms.max-attempts": "1"}
    kms = from_properties(properties | given | more)
    with pytest.raises(KmsError) as caught:
        kms.wrap_key(KEY, key_id)
    assert caught.value.__cause__ is None
    return caught.value


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"days": (-9, -1)}, "has expired"),
        ({"days": (1, 9)}, "not yet valid"),
        ({"host": "127.0.0.2"}, "not valid for the host"),
    ],
    ids=["expired", "not-yet-valid", "another-host"],
)
def test_what_is_wrong_with_a_certificate_is_told(
    serve: Callable[..., Silent], service: str, options: dict[str, object], words: str
) -> None:
    server = serve(**options)
    error = failure(service, server.url)
    assert isinstance(error, KmsConfigurationError)
    assert words in str(error)
    assert not server.requests


@pytest.mark.parametrize("service", SERVICES)
def test_an_authority_that_is_not_known(
    serve: Callable[..., Silent], service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "VAULT_CACERT"):
        monkeypatch.delenv(name)
    error = failure(service, server.url)
    assert isinstance(error, KmsConfigurationError)
    assert "not trusted (unable to get local issuer" in str(error)
    assert {"vault": "kms.vault.ca-cert", "aws": "AWS_CA_BUNDLE"}.get(
        service, "REQUESTS_CA_BUNDLE"
    ) in str(error)


@pytest.mark.parametrize("service", SERVICES)
def test_a_server_that_does_not_speak_tls(serve: Callable[..., Silent], service: str) -> None:
    error = failure(service, serve(tls=False).url.replace("http:", "https:"))
    assert isinstance(error, KmsConfigurationError)
    assert "does not speak TLS" in str(error)


@pytest.mark.parametrize("service", SERVICES)
def test_nobody_listens(service: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        error = failure(service, f"https://127.0.0.1:{free.getsockname()[1]}")
    assert isinstance(error, KmsUnavailableError)
    assert "Connection refused" in str(error)


@pytest.mark.parametrize("service", SERVICES)
def test_a_name_that_nobody_knows(service: str) -> None:
    error = failure(service, "https://kms.invalid")
    assert isinstance(error, KmsUnavailableError)
    assert "its name is not known" in str(error)


@pytest.mark.parametrize("service", ["vault", "gcp", "azure"])
def test_a_proxy_that_cannot_be_used(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "socks", None)
    error = failure(service, "https://kms.invalid")
    assert isinstance(error, KmsConfigurationError)
    assert "proxy" in str(error)


def test_vault_demands_a_client_certificate(
    serve: Callable[..., Silent], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(wants_certificate=True)
    assert "kms.vault.client-cert" in str(failure("vault", server.url))
    assert not server.requests
    given = {"kms.vault.client-cert": server.chain, "kms.vault.client-key": server.key}
    failure("vault", server.url, **given)
    assert server.requests
    server.requests.clear()
    monkeypatch.setenv("VAULT_CLIENT_CERT", server.chain)
    monkeypatch.setenv("VAULT_CLIENT_KEY", server.key)
    failure("vault", server.url)
    assert server.requests


@pytest.mark.parametrize("wrong", ["missing", "other", "text"])
def test_a_client_certificate_that_cannot_be_used(
    serve: Callable[..., Silent], tmp_path: Path, wrong: str
) -> None:
    server = serve(wants_certificate=True)
    path = {"missing": str(tmp_path / "none"), "other": serve().key, "text": __file__}[wrong]
    given = {"kms.vault.client-cert": server.chain, "kms.vault.client-key": path}
    error = failure("vault", server.url, **given)
    assert isinstance(error, KmsConfigurationError)
    assert path in str(error)
    assert "kms.vault.client-key" in str(error)


def test_variables_of_vault_that_are_not_obeyed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT_SKIP_VERIFY", "1")
    monkeypatch.setenv("VAULT_TLS_SERVER_NAME", "vault.example")
    with pytest.warns(UserWarning, match="VAULT_SKIP_VERIFY, VAULT_TLS_SERVER_NAME"):
        from_properties({"encryption.kms-type": "vault", "kms.vault.url": "https://v.example"})


@pytest.mark.parametrize(
    ("auth", "error", "words"),
    [
        ({"client_token": "", "mfa_requirement": {"mfa_request_id": "1"}}, "Denied", "MFA"),
        (None, "Configuration", "wraps its answer"),
    ],
    ids=["mfa", "wrapped"],
)
def test_a_login_that_gives_no_token(
    serve: Callable[..., Silent], auth: object, error: str, words: str
) -> None:
    server = serve()
    body = json.dumps({"auth": auth, "wrap_info": None if auth else {"token": "hvs.w"}}).encode()
    server.faults.append(Answer(200, body))
    given = {"kms.vault.auth": "approle", "kms.vault.role-id": "r", "kms.vault.secret-id": "s"}
    failed = failure("vault", server.url, **given)
    assert error in type(failed).__name__
    assert words in str(failed)
    assert "hvs.w" not in str(failed)


def test_tokens_of_few_uses(serve: Callable[..., Silent]) -> None:
    """As with ``token_num_uses`` of Vault's AppRole: each request takes one use of its token."""
    lock, left = threading.Lock(), {}

    def answer(request: Request) -> Answer:
        with lock:
            if request.path.endswith("/login"):
                token = f"hvs.{len(left)}"
                left[token] = 3
                return Answer(200, json.dumps({"auth": {"client_token": token}}).encode())
            token = request.headers["x-vault-token"]
            left[token] -= 1
            if left[token] < 0:
                return Answer(403, b'{"errors": ["permission denied"]}')
        return Answer(200, b'{"data": {"plaintext": "AAAA"}}')

    server = serve()
    server.answer = answer  # type: ignore[method-assign]
    kms = from_properties(
        {
            "encryption.kms-type": "vault",
            "kms.vault.url": server.url,
            "kms.vault.auth": "approle",
            "kms.vault.role-id": "r",
            "kms.vault.secret-id": "s",
        }
    )
    wrapped = b"vault:v1:" + b"A" * 60
    with ThreadPoolExecutor(8) as threads:
        opened = threads.map(lambda _: kms.unwrap_key(wrapped, "orders"), range(80))
        assert list(opened) == [bytes(3)] * 80


@pytest.mark.parametrize("kind", ["missing", "folder", "binary"])
@pytest.mark.parametrize(
    ("service", "variable"),
    [("aws", "AWS_WEB_IDENTITY_TOKEN_FILE"), ("gcp", "GOOGLE_APPLICATION_CREDENTIALS")],
)
def test_a_file_of_credentials_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: str, variable: str, kind: str
) -> None:
    path = {"missing": tmp_path / "none", "folder": tmp_path, "binary": Path(sys.executable)}[kind]
    monkeypatch.setenv(variable, str(path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::111122223333:role/r")
    error = failure(service, "https://127.0.0.1:1", **{"gcs.oauth2.token": ""})
    assert isinstance(error, KmsAccessDeniedError)
    assert str(path) in str(error)


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"])
def test_a_line_end_in_a_credential_is_told(
    serve: Callable[..., Silent], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    server = serve()
    monkeypatch.setenv(name, "AKIASECRET\n")
    error = failure("aws", server.url)
    assert isinstance(error, KmsConfigurationError)
    assert "credentials" in str(error)
    assert "AKIASECRET" not in str(error)
    assert not server.requests


ANSWERED = bytes(range(0x90, 0xA8))  # a size that nobody asks for
TEXT = base64.b64encode(ANSWERED).decode()
# What is not right about an answer that has a key: its alphabet, what is missing, its checksum.
FAULTY: dict[str, list[dict[str, Any]]] = {
    "aws": [{"Plaintext": TEXT, "CiphertextBlob": "AA=="}, {"Plaintext": TEXT + "!"}],
    "azure": [{"value": TEXT + "!"}, {"value": {TEXT: 1}}],
    "gcp": [{"plaintext": TEXT, "plaintextCrc32c": "1"}, {"plaintext": TEXT, "odd": TEXT}],
    "vault": [{"data": {"plaintext": TEXT}}, {"data": {"plaintext": TEXT + "!"}}],
}


@pytest.mark.parametrize("service", SERVICES)
def test_no_variable_shows_a_key_of_an_answer(
    serve: Callable[..., Silent], service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, key_id, given = SERVICES[service]
    wrapped = b"vault:v1:" + base64.b64encode(bytes(52))
    failed, shown = [], []
    for body in FAULTY[service]:
        monkeypatch.setattr(
            Silent, "answer", lambda *_, body=body: Answer(200, json.dumps(body).encode())
        )
        properties = {"encryption.kms-type": service, address: serve().url, "kms.max-attempts": "1"}
        kms = from_properties(properties | given)
        for work in (
            lambda kms=kms: kms.unwrap_key(wrapped, key_id),
            lambda kms=kms: kms.generate_key(key_id, 16),
            lambda kms=kms: KeyEncryptionKey.generate(kms, key_id, key_size=16),
        ):
            try:
                work()
            except (KmsError, NotImplementedError) as error:
                failed.append(isinstance(error, KmsError))
                shown += variables_with(error, [ANSWERED])
    assert any(failed)
    assert not shown, shown
