"""Vault: against a real one (``vault_server``), and a faulty one that only HTTP knows.

The real one needs Go and some minutes for its first build: marked interop.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import logging
import os
import pickle
import re
import shutil
import socket
import threading
import time
import urllib.error
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import https_server
import pytest
from conftest import RunPython
from go_server import cache_home, have_go
from kms_contract import KEY, KmsContract, check_rights, everything_said, spellings
from vault_server import SOURCE, VaultServer, build

from ags1.errors import (
    KmsAccessDeniedError,
    KmsConfigurationError,
    KmsError,
    KmsKeyDisabledError,
    KmsKeyNotFoundError,
    KmsUnavailableError,
    KmsUnwrapError,
)
from ags1.keys import KeyEncryptionKey
from ags1.kms import from_properties

pytest.importorskip("requests")

from ags1.kms import vault as vault_module
from ags1.kms.endpoints import InsecureEndpointWarning
from ags1.kms.vault import VaultKms

CACHE_HOME = cache_home()
TOKEN = "hvs.ThisTokenIsForTestsOnly"
interop = pytest.mark.interop


@pytest.fixture(autouse=True)
def _nothing_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("VAULT_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(CACHE_HOME))  # where Vault is built


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vault_module, "_MAX_WAIT_S", 0.01)


# --- a real Vault ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def vault() -> Iterator[VaultServer]:
    if not have_go():
        if os.environ.get("CI") == "true":
            pytest.fail("there is no Go to build Vault with")
        pytest.skip("there is no Go to build Vault with")
    with VaultServer() as server:
        for name in ("orders", "other"):
            server.request("POST", f"transit/keys/{name}", {})
        server.request("POST", "sys/auth/approle", {"type": "approle"})
        server.request("POST", "sys/auth/kubernetes", {"type": "kubernetes"})
        every_path = {"capabilities": ["create", "update", "read", "list"]}
        policy(server, "all", {"transit/*": every_path})
        yield server


def policy(server: VaultServer, name: str, paths: dict[str, Any]) -> None:
    body = {"policy": json.dumps({"path": paths})}
    server.request("PUT", f"sys/policies/acl/{name}", body)


def client(server: VaultServer, **more: str) -> VaultKms:
    given = {"kms.vault.url": server.url, "kms.vault.token": server.token}
    given |= {f"kms.vault.{name.replace('_', '-')}": value for name, value in more.items()}
    return VaultKms({name: value for name, value in given.items() if value})


@pytest.fixture
def new_key(vault: VaultServer, request: pytest.FixtureRequest) -> str:
    """Make a key of this test's own."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    vault.request("POST", f"transit/keys/{name}", {})
    return name


@interop
class TestContract(KmsContract):
    @pytest.fixture
    def kms(self, vault: VaultServer) -> Iterator[VaultKms]:
        kms = client(vault)
        yield kms
        kms.close()

    @pytest.fixture
    def key_id(self) -> str:
        return "orders"

    @pytest.fixture
    def other_key_id(self) -> str:
        return "other"

    @pytest.fixture
    def missing_key_id(self) -> str:
        return "nobody-made-this"

    @pytest.fixture
    def unreachable(self) -> VaultKms:
        return unreachable_client()


def unreachable_client() -> VaultKms:
    return VaultKms(
        {
            # Nobody may listen on port 1.
            "kms.vault.url": "http://127.0.0.1:1",
            "kms.vault.token": TOKEN,
            "kms.connect-timeout-ms": "500",
            "kms.max-attempts": "2",
        }
    )


@interop
class TestARealVault:
    def test_vault_itself_opens_what_we_wrapped(self, vault: VaultServer) -> None:
        wrapped = client(vault).wrap_key(KEY, "orders")
        answer = vault.request("POST", "transit/decrypt/orders", {"ciphertext": wrapped.decode()})
        assert base64.b64decode(answer["data"]["plaintext"]) == KEY

    def test_we_open_what_vault_itself_wrapped(self, vault: VaultServer) -> None:
        plaintext = base64.b64encode(KEY).decode()
        answer = vault.request("POST", "transit/encrypt/orders", {"plaintext": plaintext})
        assert client(vault).unwrap_key(answer["data"]["ciphertext"].encode(), "orders") == KEY

    def test_vault_makes_no_aes_192_key(self, vault: VaultServer) -> None:
        with pytest.raises(NotImplementedError, match="24"):
            client(vault).generate_key("orders", 24)
        with pytest.raises(urllib.error.HTTPError):
            vault.request("POST", "transit/datakey/plaintext/orders", {"bits": 192})

    def test_wrapping_never_makes_a_missing_master_key(self, vault: VaultServer) -> None:
        # Asked plainly and with the right to create, Vault does make it.
        with pytest.raises(KmsKeyNotFoundError):
            client(vault).wrap_key(KEY, "mistyped")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            vault.request("GET", "transit/keys/mistyped")

    def test_older_versions_unwrap_and_rewrapping_brings_the_newest(
        self, vault: VaultServer, new_key: str
    ) -> None:
        kms = client(vault)
        old = kms.wrap_key(KEY, new_key)
        vault.request("POST", f"transit/keys/{new_key}/rotate", {})
        assert kms.unwrap_key(old, new_key) == KEY
        new = kms.wrap_key(kms.unwrap_key(old, new_key), new_key)
        assert (old[:9], new[:9]) == (b"vault:v1:", b"vault:v2:")
        assert kms.wrap_key(KEY, new_key).startswith(b"vault:v2:")
        assert kms.unwrap_key(new, new_key) == KEY

    def test_a_version_out_of_use_is_disabled(self, vault: VaultServer, new_key: str) -> None:
        kms = client(vault)
        old = kms.wrap_key(KEY, new_key)
        vault.request("POST", f"transit/keys/{new_key}/rotate", {})
        new = kms.wrap_key(KEY, new_key)
        vault.request("POST", f"transit/keys/{new_key}/config", {"min_decryption_version": 2})
        with pytest.raises(KmsKeyDisabledError, match="min_decryption_version"):
            kms.unwrap_key(old, new_key)
        assert kms.unwrap_key(new, new_key) == KEY

    def test_a_deleted_key_is_not_found_nor_made_again(
        self, vault: VaultServer, new_key: str
    ) -> None:
        kms = client(vault)
        wrapped = kms.wrap_key(KEY, new_key)
        vault.request("POST", f"transit/keys/{new_key}/config", {"deletion_allowed": True})
        vault.request("DELETE", f"transit/keys/{new_key}")
        for call in (
            lambda: kms.unwrap_key(wrapped, new_key),
            lambda: kms.wrap_key(KEY, new_key),
            lambda: kms.generate_key(new_key, 16),
        ):
            with pytest.raises(KmsKeyNotFoundError, match=new_key):
                call()

    @pytest.mark.parametrize("readable", [True, False])
    def test_an_rsa_key_only_unwraps(self, vault: VaultServer, readable: bool) -> None:
        vault.request("POST", "transit/keys/rsa", {"type": "rsa-2048"})
        may = {"capabilities": ["update"]}
        paths = {f"transit/{action}/rsa": may for action in ("encrypt", "decrypt")}
        policy(vault, "blind", {**paths, "transit/datakey/plaintext/rsa": may})
        token = vault.request("POST", "auth/token/create", {"policies": ["blind"]})
        blind = client(vault, token=token["auth"]["client_token"])
        text = base64.b64encode(KEY).decode()
        answer = vault.request("POST", "transit/encrypt/rsa", {"plaintext": text})
        wrapped = answer["data"]["ciphertext"].encode()
        kms = client(vault) if readable else blind
        for call in (
            lambda: kms.wrap_key(KEY, "rsa"),
            lambda: kms.generate_key("rsa", 16),
        ):
            with pytest.raises(KmsConfigurationError, match="RSA key"):
                call()
        assert kms.unwrap_key(wrapped, "rsa") == KEY
        with pytest.raises(KmsUnwrapError):
            kms.unwrap_key(wrapped[:-20] + b"A" * 16 + wrapped[-4:], "rsa")

    @pytest.mark.parametrize("convergent", [False, True])
    def test_a_key_that_needs_a_context_is_refused(
        self, vault: VaultServer, convergent: bool
    ) -> None:
        name = f"derived-{convergent}"
        options = {"derived": True, "convergent_encryption": convergent}
        vault.request("POST", f"transit/keys/{name}", options)
        kms = client(vault)
        for call in (
            lambda: kms.wrap_key(KEY, name),
            lambda: kms.generate_key(name, 16),
            lambda: kms.unwrap_key(b"vault:v1:" + base64.b64encode(bytes(60)), name),
        ):
            with pytest.raises(KmsError, match="context") as caught:
                call()
            assert type(caught.value) is KmsError

    def test_a_signing_key_is_refused(self, vault: VaultServer) -> None:
        vault.request("POST", "transit/keys/signing", {"type": "ecdsa-p256"})
        kms = client(vault)
        with pytest.raises(KmsError, match="cannot encrypt"):
            kms.wrap_key(KEY, "signing")
        with pytest.raises(KmsError, match="encryption not supported"):
            kms.generate_key("signing", 32)

    @pytest.mark.parametrize(
        "name", ["a", "_", "A-b_c.d", "0", "orders.2026-01", "x" * 200, "keys"]
    )
    def test_any_name_that_vault_takes(self, vault: VaultServer, name: str) -> None:
        vault.request("POST", f"transit/keys/{name}", {})
        kms = client(vault)
        assert kms.unwrap_key(kms.wrap_key(KEY, name), name) == KEY

    def test_a_wrong_token_is_refused(self, vault: VaultServer) -> None:
        kms = client(vault, token="hvs.wrong")
        for call in (
            lambda: kms.wrap_key(KEY, "orders"),
            lambda: kms.generate_key("orders", 16),
        ):
            with pytest.raises(KmsAccessDeniedError) as caught:
                call()
            assert b"hvs.wrong" not in everything_said(caught.value)

    def test_a_policy_that_forbids(self, vault: VaultServer) -> None:
        wraps_only = {"transit/encrypt/orders": {"capabilities": ["update"]}}
        policy(vault, "wraps-only", wraps_only)
        token = vault.request("POST", "auth/token/create", {"policies": ["wraps-only"]})["auth"]
        kms = client(vault, token=token["client_token"])
        wrapped = kms.wrap_key(KEY, "orders")
        assert client(vault).unwrap_key(wrapped, "orders") == KEY
        for call in (
            lambda: kms.unwrap_key(wrapped, "orders"),
            lambda: kms.wrap_key(KEY, "other"),
        ):
            with pytest.raises(KmsAccessDeniedError, match="policy"):
                call()

    def test_an_expired_static_token_is_refused(self, vault: VaultServer) -> None:
        token = vault.request("POST", "auth/token/create", {"policies": ["all"]})["auth"]
        kms = client(vault, token=token["client_token"])
        wrapped = kms.wrap_key(KEY, "orders")
        vault.request("POST", "auth/token/revoke", {"token": token["client_token"]})
        with pytest.raises(KmsAccessDeniedError):
            kms.unwrap_key(wrapped, "orders")

    def test_a_token_file_is_read_again_when_its_token_expired(
        self, vault: VaultServer, tmp_path: Path
    ) -> None:
        def new_token() -> str:
            body = {"policies": ["all"]}
            token: str = vault.request("POST", "auth/token/create", body)["auth"]["client_token"]
            (tmp_path / "token").write_text(f"{token}\n")
            return token

        first = new_token()
        kms = client(vault, token="", token_file=str(tmp_path / "token"))
        wrapped = kms.wrap_key(KEY, "orders")
        vault.request("POST", "auth/token/revoke", {"token": first})
        with pytest.raises(KmsAccessDeniedError):
            kms.unwrap_key(wrapped, "orders")
        new_token()
        assert kms.unwrap_key(wrapped, "orders") == KEY

    @pytest.mark.parametrize("where", ["VAULT_TOKEN", "~/.vault-token"])
    def test_the_token_of_the_command_line_serves(
        self, vault: VaultServer, where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("VAULT_ADDR", vault.url)
        if where == "VAULT_TOKEN":
            monkeypatch.setenv(where, vault.token)
        else:
            (tmp_path / ".vault-token").write_text(vault.token)
        kms = from_properties({"encryption.kms-type": "vault"})
        wrapped = kms.wrap_key(KEY, "orders")
        assert pickle.loads(pickle.dumps(kms)).unwrap_key(wrapped, "orders") == KEY

    def test_a_mount_that_is_not_there(self, vault: VaultServer) -> None:
        kms = client(vault, mount_path="nothing/here")
        for call in (lambda: kms.wrap_key(KEY, "orders"), lambda: kms.generate_key("orders", 16)):
            with pytest.raises(KmsConfigurationError, match="mount-path"):
                call()

    def test_logs_hold_neither_key_nor_token(
        self, vault: VaultServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("VAULT_TOKEN", vault.token)
        kms = client(vault, token="")
        with caplog.at_level(logging.DEBUG):
            made = kms.generate_key("orders", 32)
            with pytest.raises(KmsUnwrapError):
                kms.unwrap_key(made.wrapped_key, "other")
        assert "/v1/transit/datakey/plaintext/orders" in caplog.text  # the logs were on
        for secret in (*spellings(made.key), vault.token.encode()):
            assert secret not in caplog.text.encode()


@interop
class TestLogins:
    @staticmethod
    def role(vault: VaultServer, **options: Any) -> dict[str, str]:
        name = f"role-{options.get('name', 'plain')}"
        options.pop("name", None)
        path = f"auth/approle/role/{name}"
        vault.request("POST", path, {"token_policies": ["all"], **options})
        role_id = vault.request("GET", f"{path}/role-id")["data"]["role_id"]
        secret_id = vault.request("POST", f"{path}/secret-id")["data"]["secret_id"]
        return {"auth": "approle", "token": "", "role_id": role_id, "secret_id": secret_id}

    def test_approle(self, vault: VaultServer, tmp_path: Path) -> None:
        given = self.role(vault)
        kms = client(vault, **given)
        wrapped = kms.wrap_key(KEY, "orders")
        with pytest.raises(TypeError, match="secret-id"):
            pickle.dumps(kms)
        (tmp_path / "secret").write_text(given.pop("secret_id") + "\n")
        kms = client(vault, **given, secret_id_file=str(tmp_path / "secret"))
        assert pickle.loads(pickle.dumps(kms)).unwrap_key(wrapped, "orders") == KEY

    def test_a_token_that_expires_in_mid_use_is_replaced(self, vault: VaultServer) -> None:
        kms = client(vault, **self.role(vault, name="short", token_ttl="1s", token_max_ttl="1s"))
        wrapped = kms.wrap_key(KEY, "orders")
        first = kms._connection.get().token
        while True:  # until Vault itself calls it expired
            try:
                vault.request("GET", "auth/token/lookup-self", token=first)
            except urllib.error.HTTPError:
                break
            time.sleep(0.1)
        assert kms.unwrap_key(wrapped, "orders") == KEY
        assert kms._connection.get().token != first

    def test_a_revoked_token_is_replaced_once_for_all_threads(self, vault: VaultServer) -> None:
        given = self.role(vault, name="revoked")
        kms = client(vault, **given)
        wrapped = kms.wrap_key(KEY, "orders")
        vault.request("POST", "auth/token/revoke", {"token": kms._connection.get().token})
        before = len(vault.request("LIST", "auth/token/accessors")["data"]["keys"])
        results: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: results.append(kms.unwrap_key(wrapped, "orders")))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results == [KEY] * 6
        assert len(vault.request("LIST", "auth/token/accessors")["data"]["keys"]) == before + 1

    def test_a_policy_that_forbids_makes_no_new_login(self, vault: VaultServer) -> None:
        kms = client(vault, **self.role(vault, name="forbidden", token_policies=["default"]))
        for _ in range(2):
            with pytest.raises(KmsAccessDeniedError):
                kms.generate_key("orders", 16)
        first = kms._connection.get().token
        with pytest.raises(KmsAccessDeniedError):
            kms.generate_key("orders", 16)
        assert kms._connection.get().token == first

    @pytest.mark.parametrize("uses", [0, 1])
    def test_two_rights_and_one_login_are_enough(
        self, vault: VaultServer, new_key: str, uses: int
    ) -> None:
        """The role may neither read the key nor look its token up, and its secret id may be for one
        login."""

        def tokens() -> set[str]:
            return set(vault.request("LIST", "auth/token/accessors")["data"]["keys"])

        may = {"capabilities": ["update"]}
        actions = ("encrypt", "decrypt")
        policy(vault, "least", {f"transit/{action}/{new_key}": may for action in actions})
        options = {"token_policies": ["least"], "token_no_default_policy": True}
        kms = client(vault, **self.role(vault, name="least", secret_id_num_uses=uses, **options))
        kek = KeyEncryptionKey.generate(kms, new_key, key_size=32)  # datakey is refused first
        before = tokens()
        for _ in range(3):
            assert kms.unwrap_key(kms.wrap_key(KEY, new_key), new_key) == KEY
        vault.request("POST", f"transit/keys/{new_key}/rotate", {})
        rewrapped = kek.rewrap(kms, new_key).entry.encrypted_key_metadata
        assert rewrapped.startswith(b"vault:v2:")
        assert tokens() <= before  # those of other tests end meanwhile
        # The refusal is told, and not that another login failed.
        with pytest.raises(KmsAccessDeniedError, match=r"unwrap a key with 'other'.*policy"):
            kms.unwrap_key(rewrapped, "other")

    @pytest.mark.parametrize(
        ("actions", "may"),
        [
            (("encrypt",), "make wrap"),
            (("datakey/plaintext",), "make"),
            (("decrypt",), "unwrap"),
            (("rewrap",), ""),
        ],
    )
    def test_what_each_right_is_for(
        self, vault: VaultServer, actions: tuple[str, ...], may: str
    ) -> None:
        wrapped = client(vault).wrap_key(KEY, "orders")
        update = {"capabilities": ["update"]}
        policy(vault, "one", {f"transit/{action}/orders": update for action in actions})
        token = vault.request("POST", "auth/token/create", {"policies": ["one"]})
        kms = client(vault, token=token["auth"]["client_token"])
        check_rights(kms, "orders", wrapped, may)

    @pytest.mark.parametrize("wrong", ["role_id", "secret_id"])
    def test_a_wrong_approle_is_refused(self, vault: VaultServer, wrong: str) -> None:
        given = self.role(vault) | {wrong: "7d1f2a2e-0000-4000-8000-c0ffee000000"}
        with pytest.raises(KmsAccessDeniedError, match="approle") as caught:
            client(vault, **given).wrap_key(KEY, "orders")
        for secret in (given["secret_id"], given["role_id"]):
            assert secret.encode() not in everything_said(caught.value)

    def test_a_login_mount_that_is_not_there(self, vault: VaultServer) -> None:
        # Vault does not tell who is not logged in what there is.
        with pytest.raises(KmsAccessDeniedError, match="auth-mount-path"):
            client(vault, **self.role(vault), auth_mount_path="nowhere").wrap_key(KEY, "orders")

    def test_kubernetes(self, vault: VaultServer, tmp_path: Path) -> None:
        # Vault's own auth method; only the cluster it asks is ours.
        certifi = pytest.importorskip("certifi")
        good, bad = service_account_token("uid-1", "good"), service_account_token("uid-1", "bad")

        def review(request: Request) -> Reply:
            known = json.loads(request.body)["spec"]["token"] == good
            user = {
                "username": "system:serviceaccount:jobs:spark",
                "uid": "uid-1",
                "groups": ["system:serviceaccounts"],
            }
            return Reply(201, {"status": {"authenticated": known, "user": user if known else {}}})

        with FaultyServer(review) as cluster:
            config = {
                "kubernetes_host": cluster.url,
                "token_reviewer_jwt": good,
                # One has to be given; a cluster that speaks http has none.
                "kubernetes_ca_cert": Path(certifi.where()).read_text(),
                "disable_local_ca_jwt": True,
            }
            vault.request("POST", "auth/kubernetes/config", config)
            role = {
                "bound_service_account_names": ["spark"],
                "bound_service_account_namespaces": ["jobs"],
                "token_policies": ["all"],
            }
            vault.request("POST", "auth/kubernetes/role/reader", role)
            file = tmp_path / "jwt"
            file.write_text(good)
            given = {"token": "", "auth": "kubernetes", "role": "reader", "jwt_file": str(file)}
            kms = client(vault, **given)
            wrapped = kms.wrap_key(KEY, "orders")
            assert pickle.loads(pickle.dumps(kms)).unwrap_key(wrapped, "orders") == KEY
            assert [request.path for request in cluster.requests][:1] == [
                "/apis/authentication.k8s.io/v1/tokenreviews"
            ]
            file.write_text(bad)
            for refused in (client(vault, **given), client(vault, **given | {"role": "nobody"})):
                with pytest.raises(KmsAccessDeniedError, match="kubernetes") as caught:
                    refused.wrap_key(KEY, "orders")
                assert bad.encode() not in everything_said(caught.value)
            # The token on disk is renewed by the cluster: it is read at each login.
            file.write_text(good)
            vault.request("POST", "auth/token/revoke", {"token": kms._connection.get().token})
            assert kms.unwrap_key(wrapped, "orders") == KEY


def service_account_token(uid: str, signature: str) -> str:
    claims = {
        "iss": "https://kubernetes.default.svc.cluster.local",
        "sub": "system:serviceaccount:jobs:spark",
        "exp": int(time.time()) + 3600,
        "iat": int(time.time()),
        "nbf": int(time.time()),
        "kubernetes.io": {"namespace": "jobs", "serviceaccount": {"name": "spark", "uid": uid}},
    }
    parts = [json.dumps(part).encode() for part in ({"alg": "RS256", "kid": "k"}, claims)]
    parts.append(signature.encode() * 40)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@interop
def test_a_sealed_vault_is_unavailable_until_it_is_gone(vault: VaultServer) -> None:
    with VaultServer() as other:
        other.request("POST", "transit/keys/orders", {})
        kms = client(other)
        wrapped = kms.wrap_key(KEY, "orders")
        other.request("PUT", "sys/seal")
        for call in (
            lambda: kms.unwrap_key(wrapped, "orders"),
            lambda: kms.wrap_key(KEY, "orders"),
        ):
            with pytest.raises(KmsUnavailableError, match="sealed"):
                call()
    with pytest.raises(KmsUnavailableError, match="refused"):
        kms.unwrap_key(wrapped, "orders")


@interop
def test_tls(vault: VaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with VaultServer(tls=True) as other:
        other.request("POST", "transit/keys/orders", {})
        kms = client(other, ca_cert=str(other.ca_cert))
        wrapped = kms.wrap_key(KEY, "orders")
        with pytest.raises(KmsConfigurationError, match="certificate"):
            client(other).unwrap_key(wrapped, "orders")
        with pytest.warns(InsecureEndpointWarning, match="verify"):
            unverified = client(other, verify="false")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert unverified.unwrap_key(wrapped, "orders") == KEY
        in_the_clear = VaultKms(
            {"kms.vault.url": other.url.replace("https", "http"), "kms.vault.token": other.token}
        )
        # The server may end the connection before its answer, which is no HTTP, was read.
        with pytest.raises(KmsError, match=r"proxy|ended the connection"):
            in_the_clear.unwrap_key(wrapped, "orders")
        (tmp_path / "junk.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n")
        for path in ("nowhere.pem", "junk.pem"):
            with pytest.raises(KmsConfigurationError, match=path):
                client(other, ca_cert=str(tmp_path / path)).unwrap_key(wrapped, "orders")
        monkeypatch.setenv("VAULT_CACERT", str(other.ca_cert))
        assert client(other).unwrap_key(wrapped, "orders") == KEY


@interop
def test_a_server_goes_down_with_the_tests(vault: VaultServer, run_python: RunPython) -> None:
    done = run_python(
        "import os, signal; from vault_server import VaultServer\n"
        "server = VaultServer().__enter__(); print(server.url, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
        check=False,
    )
    kms = VaultKms(
        {
            "kms.vault.url": done.stdout.strip(),
            "kms.vault.token": TOKEN,
            "kms.max-attempts": "1",
        }
    )
    deadline = time.monotonic() + 60
    while True:  # a server that is up refuses the token
        try:
            kms.generate_key("orders", 16)
        except KmsUnavailableError:
            break
        except KmsAccessDeniedError:
            assert time.monotonic() < deadline


@interop
def test_the_build_is_made_once(vault: VaultServer) -> None:
    program = build()
    made = program.stat().st_mtime_ns
    assert build() == program
    assert program.stat().st_mtime_ns == made


@interop
def test_a_build_that_fails_leaves_no_program(
    vault: VaultServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("go.mod", "go.sum"):
        shutil.copy(SOURCE / name, tmp_path)
    (tmp_path / "main.go").write_text("package main\n\nno Go at all\n")
    monkeypatch.setattr("vault_server.SOURCE", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(RuntimeError, match="does not build"):
        build()
    assert [path.suffix for path in tmp_path.glob("cache/ags1/vault/*")] == [".lock"]


# --- a server that has its own ideas --------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """``raw`` is sent in place of a response; ``delay_s`` passes before."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    delay_s: float = 0.0


class FaultyServer:
    """An HTTP server on 127.0.0.1 that replies what it is told and notes what it was asked."""

    def __init__(self, answer: Callable[[Request], Reply]) -> None:
        self.requests: list[Request] = []
        self.done = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def parse_request(self) -> bool:
                if not super().parse_request():
                    return False
                # Whatever the method, LIST included.
                setattr(self, f"do_{self.command}", self.reply)
                return True

            def reply(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, body)
                outer.requests.append(request)
                reply = answer(request)
                if reply.delay_s:
                    outer.done.wait(reply.delay_s)
                self.close_connection = True
                with contextlib.suppress(OSError):
                    if reply.raw is not None:
                        self.wfile.write(reply.raw)
                        return
                    data = b"" if reply.body is None else json.dumps(reply.body).encode()
                    self.send_response(reply.status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    # A client that is not told sends its next request into the closing connection.
                    self.send_header("Connection", "close")
                    for name, value in reply.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FaultyServer:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.done.set()
        self._server.shutdown()
        self._server.server_close()


def client_of(server: FaultyServer, **more: str) -> VaultKms:
    given = {
        "kms.vault.url": server.url,
        "kms.vault.token": TOKEN,
        "kms.max-attempts": "3",
        "kms.read-timeout-ms": "500",
    }
    given |= {f"kms.vault.{name.replace('_', '-')}": value for name, value in more.items()}
    return VaultKms({name: value for name, value in given.items() if value})


WRAPPED = b"vault:v1:" + base64.b64encode(bytes(44))
OPENED = Reply(200, {"data": {"plaintext": base64.b64encode(KEY).decode()}})
FAULTS = {
    "throttled": Reply(429, {"errors": ["request path: rate limit quota exceeded"]}),
    "throttled for an hour": Reply(429, {"errors": []}, {"Retry-After": "3600"}),
    "throttled until nonsense": Reply(429, {"errors": []}, {"Retry-After": "soon"}),
    "sealed": Reply(503, {"errors": ["Vault is sealed"]}),
    "not up to date": Reply(412, {"errors": ["required index state not present"]}),
    "broken": Reply(500, {"errors": ["internal error"]}),
    "behind a gateway": Reply(502, None),
    "slow": Reply(200, {}, delay_s=30),
    "dropped": Reply(raw=b""),
    "no HTTP": Reply(raw=b"\x15\x03\x01\x00\x02\x02\x46 what?\r\n\r\n"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_server_is_unavailable(fault: str) -> None:
    with FaultyServer(lambda _: FAULTS[fault]) as server:
        for call in (
            lambda: client_of(server).unwrap_key(WRAPPED, "orders"),
            lambda: client_of(server).wrap_key(KEY, "orders"),
        ):
            server.requests.clear()
            with pytest.raises(KmsUnavailableError) as caught:
                call()
            assert len(server.requests) == 3
            said = everything_said(caught.value)
            assert not any(secret in said for secret in (*spellings(KEY), TOKEN.encode()))
            assert caught.value.__context__ is None
            assert server.url in str(caught.value)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_that_passes_is_not_noticed(fault: str) -> None:
    replies = iter([FAULTS[fault], FAULTS[fault], OPENED])
    with FaultyServer(lambda _: next(replies)) as server:
        assert client_of(server).unwrap_key(WRAPPED, "orders") == KEY
        assert {(r.method, r.path, r.body) for r in server.requests} == {
            ("POST", "/v1/transit/decrypt/orders", server.requests[0].body)
        }
        assert len(server.requests) == 3


def test_an_answer_that_breaks_off_is_an_error() -> None:
    broken = Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    with FaultyServer(lambda _: broken) as server:
        # Unavailable from urllib3 2.0 on, which compares the lengths.
        with pytest.raises(KmsError) as caught:
            client_of(server).wrap_key(KEY, "orders")
        assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "body",
    [
        *([], "text", 7, {}, {"data": None}, {"data": []}, {"data": {"plaintext": 1}}),
        {"data": {"plaintext": "*", "ciphertext": "vault:1", "keys": "orders", "type": 3}},
        {"data": {"plaintext": "AAAA", "keys": [{}], "type": "t", "latest_version": "1"}},
    ],
)
@pytest.mark.parametrize("status", [200, 404, 400, 418])
def test_answers_of_another_form(body: Any, status: int) -> None:
    with FaultyServer(lambda _: Reply(status, body)) as server:
        kms = client_of(server)
        for call in (
            lambda: kms.wrap_key(KEY, "orders"),
            lambda: kms.generate_key("orders", 16),
        ):
            with pytest.raises(KmsError, match="as Vault does") as caught:
                call()
            assert not any(secret in everything_said(caught.value) for secret in spellings(KEY))


@pytest.mark.parametrize(
    "text", [b"<html>it works</html>", b"", b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe{}"]
)
@pytest.mark.parametrize("status", [200, 404])
def test_answers_that_are_no_json(text: bytes, status: int) -> None:
    reply = b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text)
    with FaultyServer(lambda _: Reply(raw=reply)) as server:
        kms = client_of(server)
        for call in (
            lambda: kms.unwrap_key(WRAPPED, "orders"),
            lambda: kms.wrap_key(KEY, "orders"),
        ):
            with pytest.raises(KmsError, match="as Vault does"):
                call()


@pytest.mark.parametrize("part", ["body", "headers"])
def test_an_echo_of_the_request_is_not_repeated(part: str) -> None:
    def answer(request: Request) -> Reply:
        if request.method == "GET":
            return Reply(200, {"data": {}})
        echo = request.body.decode() if part == "body" else str(request.headers)
        return Reply(400, {"errors": [echo]})

    with FaultyServer(answer) as server:
        kms = client_of(server)
        for call in (
            lambda: kms.wrap_key(KEY, "orders"),
            lambda: kms.unwrap_key(WRAPPED, "orders"),
            lambda: kms.generate_key("orders", 16),
        ):
            with pytest.raises(KmsError) as caught:
                call()
            said = everything_said(caught.value)
            assert not any(secret in said for secret in (*spellings(KEY), TOKEN.encode()))


def test_a_redirect_takes_nothing_along() -> None:
    with FaultyServer(lambda _: OPENED) as elsewhere:
        moved = Reply(307, None, {"Location": f"{elsewhere.url}/v1/transit/decrypt/orders"})
        with FaultyServer(lambda _: moved) as server:
            with pytest.raises(KmsConfigurationError, match="another address"):
                client_of(server).unwrap_key(WRAPPED, "orders")
            assert len(server.requests) == 1
        assert elsewhere.requests == []


def test_requests_are_those_of_vaults_api() -> None:
    with FaultyServer(lambda _: OPENED) as server:
        kms = client_of(server, namespace="team/a", mount_path="/keys/of-ours/")
        assert kms.unwrap_key(WRAPPED, "orders") == KEY
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/keys/of-ours/decrypt/orders")
    assert json.loads(request.body) == {"ciphertext": WRAPPED.decode()}
    assert request.headers["x-vault-token"] == TOKEN
    assert request.headers["x-vault-namespace"] == "team/a"
    assert request.headers["x-vault-request"] == "true"


def test_the_namespace_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultyServer(lambda _: OPENED) as server:
        monkeypatch.setenv("VAULT_NAMESPACE", "team/b")
        monkeypatch.setenv("VAULT_ADDR", server.url + "/")
        monkeypatch.setenv("VAULT_TOKEN", TOKEN)
        VaultKms({}).unwrap_key(WRAPPED, "orders")
    assert server.requests[0].headers["x-vault-namespace"] == "team/b"
    assert server.requests[0].path == "/v1/transit/decrypt/orders"


def test_neither_cookies_nor_passwords_of_others_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text("default login somebody password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))

    class Cookies(https_server.Server):
        def answer(self, request: https_server.Request) -> https_server.Answer:
            body = json.dumps(OPENED.body).encode()
            return https_server.Answer(200, body, {"Set-Cookie": "a=b; Path=/"})

    # Over TLS: without, requests looks for neither proxies nor passwords.
    server = Cookies()
    try:
        given = {"kms.vault.url": server.url, "kms.vault.token": TOKEN}
        kms = VaultKms(given | {"kms.vault.ca-cert": server.certificate})
        for _ in range(2):
            kms.unwrap_key(WRAPPED, "orders")
    finally:
        server.stop()
    assert len(server.requests) == 2
    for request in server.requests:
        assert {"cookie", "authorization"}.isdisjoint(request.headers)


@pytest.mark.parametrize("auth", ["approle", "kubernetes"])
def test_a_login_sends_no_token_and_follows_an_expired_one(auth: str, tmp_path: Path) -> None:
    (tmp_path / "jwt").write_text("the.jwt.here")
    given = {"role_id": "r", "secret_id": "s"} if auth == "approle" else {"role": "r"}
    logins: list[Request] = []
    good = "hvs.2"

    def answer(request: Request) -> Reply:
        if request.path == f"/v1/auth/my/{auth}/login":
            logins.append(request)
            return Reply(200, {"auth": {"client_token": f"hvs.{len(logins)}"}})
        known = request.headers["x-vault-token"] == good
        return OPENED if known else Reply(403, {"errors": ["permission denied"]})

    with FaultyServer(answer) as server:
        kms = client_of(
            server,
            auth=auth,
            token="",
            auth_mount_path=f"my/{auth}",
            jwt_file=str(tmp_path / "jwt") if auth == "kubernetes" else "",
            **given,
        )
        assert kms.unwrap_key(WRAPPED, "orders") == KEY
        assert [r.path.rsplit("/", 1)[1] for r in server.requests] == [
            "login",
            "orders",
            "lookup-self",
            "login",
            "orders",
        ]
        assert all("x-vault-token" not in login.headers for login in logins)
        sent = json.loads(logins[0].body)
        assert sent == (
            {"role_id": "r", "secret_id": "s"}
            if auth == "approle"
            else {"role": "r", "jwt": "the.jwt.here"}
        )
        # No more after eight tokens that served nobody.
        good = "hvs.none"
        server.requests.clear()
        with pytest.raises(KmsAccessDeniedError):
            kms.unwrap_key(WRAPPED, "orders")
        assert len(server.requests) == 28


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(200, {"auth": None}), KmsError),
        (Reply(200, {"auth": {"client_token": "a\r\nb"}}), KmsError),
        (Reply(200, []), KmsError),
        (Reply(400, {"errors": ["invalid role or secret ID"]}), KmsAccessDeniedError),
        (Reply(503, {"errors": ["Vault is sealed"]}), KmsUnavailableError),
        (Reply(404, {"errors": ['no handler for route "auth/x/login"']}), KmsConfigurationError),
    ],
)
def test_logins_that_fail(reply: Reply, error: type[KmsError]) -> None:
    with FaultyServer(lambda _: reply) as server:
        kms = client_of(server, auth="approle", token="", role_id="r", secret_id="s3cret-id")
        with pytest.raises(error) as caught:
            kms.unwrap_key(WRAPPED, "orders")
        assert type(caught.value) is error
        assert b"s3cret-id" not in everything_said(caught.value)


def test_a_wrong_secret_id_is_tried_once() -> None:
    # As Vault 1.13 says it; too many tries lock the role out.
    with FaultyServer(lambda _: Reply(500, {"errors": ["invalid secret id"]})) as server:
        kms = client_of(server, auth="approle", token="", role_id="r", secret_id="s")
        with pytest.raises(KmsAccessDeniedError):
            kms.unwrap_key(WRAPPED, "orders")
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "key_id",
    [
        *("", ".", "..", "a/b", "../sys/seal", "a/../b", "a b", "a?b", "a#b", "a%2fb", "ä", "-a"),
        *(
            "a..b",
            "a-",
            ".a",
            "a.",
            "x" * 600,
            "arn:aws:kms:eu-west-1:1:key/2",
            "a\0",
            "a\n",
            "\ud800",
        ),
    ],
)
def test_a_name_that_no_key_can_have_is_not_asked_for(key_id: str) -> None:
    with FaultyServer(lambda _: OPENED) as server:
        kms = client_of(server)
        for call in (
            lambda: kms.wrap_key(KEY, key_id),
            lambda: kms.unwrap_key(WRAPPED, key_id),
            lambda: kms.generate_key(key_id, 16),
        ):
            with pytest.raises(KmsKeyNotFoundError):
                call()
        assert server.requests == []


@pytest.mark.parametrize(
    "wrapped",
    [
        *(b"vault:v1:", b"vault:v:AAAA", b"vault:v1:AA\nAA", b"vault:v1:AAAA\n", b" vault:v1:AAAA"),
        *(b"vault:vx:AAAA", b"VAULT:v1:AAAA", b"\xff" * 40, b"vault:v1:" + b"A" * 70_000),
    ],
)
def test_what_vault_never_wrapped_is_not_sent(wrapped: bytes) -> None:
    with FaultyServer(lambda _: OPENED) as server:
        with pytest.raises(KmsUnwrapError):
            client_of(server).unwrap_key(wrapped, "orders")
        assert server.requests == []


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"kms.vault.url": ""}, "kms.vault.url"),
        ({"kms.vault.url": "127.0.0.1:8200"}, "https://host:8200"),
        ({"kms.vault.url": "unix:///run/vault"}, "https://host:8200"),
        ({"kms.vault.url": "https://"}, "https://host:8200"),
        ({"kms.vault.url": "https://h:99999"}, "https://host:8200"),
        ({"kms.vault.url": "https://[::1"}, "https://host:8200"),
        ({"kms.vault.url": "https://h/?a=b"}, "https://host:8200"),
        ({"kms.vault.url": "https://h\r\nx"}, "https://host:8200"),
        ({"kms.vault.url": "https://me:hunter2@h"}, "may not hold credentials"),
        ({"kms.vault.namespace": "a\r\nX-Vault-Token: b"}, "kms.vault.namespace"),
        ({"kms.vault.mount-path": "../sys"}, "kms.vault.mount-path"),
        ({"kms.vault.mount-path": "a//b"}, "kms.vault.mount-path"),
        ({"kms.vault.mount-path": "a?b"}, "kms.vault.mount-path"),
        ({"kms.vault.auth-mount-path": "a/../b"}, "kms.vault.auth-mount-path"),
        ({"kms.vault.auth": "ldap"}, "kms.vault.auth"),
        ({"kms.vault.auth": "approle"}, "kms.vault.role-id"),
        ({"kms.vault.auth": "kubernetes"}, "kms.vault.role"),
        ({"kms.vault.token": "hunter2", "kms.vault.token-file": "f"}, "kms.vault.token-file"),
        ({"kms.vault.secret-id": "s", "kms.vault.secret-id-file": "f"}, "secret-id-file"),
        ({"kms.vault.verify": "no"}, "kms.vault.verify"),
        ({"kms.vault.verify": "false", "kms.vault.ca-cert": "f"}, "kms.vault.ca-cert"),
        ({"kms.max-attempts": "0"}, "kms.max-attempts"),
    ],
)
def test_properties_that_are_wrong(given: dict[str, str], named: str) -> None:
    with pytest.raises(KmsConfigurationError, match=re.escape(named)) as caught:
        VaultKms({"kms.vault.url": "https://vault.test:8200"} | given)
    assert b"hunter2" not in everything_said(caught.value)


@pytest.mark.parametrize(
    ("token", "error"),
    [("hunter2\nhunter3", KmsConfigurationError), ("h\u00fcnter2", KmsConfigurationError)],
)
def test_a_token_that_is_none(token: str, error: type[KmsError], tmp_path: Path) -> None:
    (tmp_path / "file").write_text(token)
    with FaultyServer(lambda _: OPENED) as server:
        for kms in (
            client_of(server, token=token),
            client_of(server, token="", token_file=str(tmp_path / "file")),
        ):
            with pytest.raises(error) as caught:
                kms.unwrap_key(WRAPPED, "orders")
            assert not re.search(rb"h\S{1,2}nter", everything_said(caught.value))
        with pytest.raises(KmsConfigurationError, match="nowhere"):
            client_of(server, token="", token_file="nowhere").unwrap_key(WRAPPED, "orders")
        with pytest.raises(KmsAccessDeniedError, match="VAULT_TOKEN"):
            client_of(server, token="").unwrap_key(WRAPPED, "orders")
        assert server.requests == []


def test_no_certificate_checked_is_warned_of() -> None:
    with pytest.warns(InsecureEndpointWarning, match="verify is false") as caught:
        VaultKms({"kms.vault.url": "https://vault.test:8200", "kms.vault.verify": "false"})
    assert [one.filename for one in caught] == [__file__]


def test_a_client_shows_and_pickles_no_secret() -> None:
    kms = VaultKms({"kms.vault.url": "https://vault.test", "kms.vault.token": TOKEN})
    assert TOKEN not in repr(kms) + repr(vars(kms))
    assert "https://vault.test" in repr(kms)
    with pytest.raises(TypeError, match=r"kms\.vault\.token"):
        pickle.dumps(kms)


def test_without_its_library_it_says_what_to_install(run_python: RunPython) -> None:
    said = run_python(
        "import sys; sys.modules['requests'] = None\n"
        "from ags1.kms import from_properties\n"
        "try: from_properties({'encryption.kms-type': 'vault', 'kms.vault.url': 'https://h'})\n"
        "except ValueError as error: print(error)"
    ).stdout
    assert "ags1[vault]" in said


def test_a_server_that_is_down_is_unavailable() -> None:
    with pytest.raises(KmsUnavailableError, match="refused"):
        unreachable_client().wrap_key(KEY, "orders")


def test_a_host_without_an_address() -> None:
    kms = VaultKms(
        {
            "kms.vault.url": "https://no-such-host.invalid",
            "kms.vault.token": TOKEN,
            "kms.max-attempts": "1",
        }
    )
    with pytest.raises(KmsUnavailableError, match=r"no-such-host\.invalid"):
        kms.wrap_key(KEY, "orders")


def test_keys_in_the_clear_go_through_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultyServer(lambda _: OPENED) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        kms = VaultKms({"kms.vault.url": "http://127.0.0.1:1", "kms.vault.token": TOKEN})
        with pytest.raises(KmsConfigurationError, match="NO_PROXY"):
            kms.unwrap_key(WRAPPED, "orders")
        assert proxy.requests == []
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with FaultyServer(lambda _: OPENED) as server:
            kms = client_of(server)
            assert kms.unwrap_key(WRAPPED, "orders") == KEY
            monkeypatch.delenv("no_proxy")  # a proxy that comes later gets nothing either
            assert kms.unwrap_key(WRAPPED, "orders") == KEY
        assert proxy.requests == []


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("part", ["body", "chunks", "headers"])
def test_an_answer_is_not_read_without_end(part: str) -> None:
    begin, piece = {
        "body": (HEAD + b"Content-Length: %d\r\n\r\n" % (1 << 40), b" " * 65536),
        "chunks": (
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
            b"%x\r\n%65536s\r\n" % (65536, b""),
        ),
        "headers": (HEAD, b"X: %65000s\r\n" % b"y"),
    }[part]
    sent = 0
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def send() -> None:
            nonlocal sent
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                connection.sendall(begin)
                while sent < 256 << 20:
                    connection.sendall(piece)
                    sent += len(piece)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        given = {"kms.vault.url": url, "kms.vault.token": TOKEN, "kms.max-attempts": "1"}
        with pytest.raises(KmsError, match=r"more than 4 MiB|cannot be reached"):
            VaultKms(given).unwrap_key(WRAPPED, "orders")
        thread.join(60)
    # What lies in the sockets' buffers besides.
    assert sent < 64 << 20


def test_a_compressed_answer_is_not_unpacked() -> None:
    data = gzip.compress(json.dumps(OPENED.body).encode())
    raw = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(data) + data
    with FaultyServer(lambda _: Reply(raw=raw)) as server:
        with pytest.raises(KmsError, match="as Vault does"):
            client_of(server).unwrap_key(WRAPPED, "orders")
        assert server.requests[0].headers["accept-encoding"] == "identity"
