"""The KMS clients of the plug-in for Java: what one language wraps, the other unwraps, by the same
properties."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
import unicodedata
import warnings
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Literal

import certifi
import pytest
from https_server import Answer, Request, Server
from kms_contract import spellings
from vault_server import VaultServer

from ags1.kms import LocalKms, from_properties
from ags1.kms import keyring as keyring_module
from ags1.kms.local import create_key, set_passphrase

from .jars import unavailable
from .java import Java, JavaError

pytestmark = pytest.mark.interop

KEYS = [bytes(range(100, 100 + size)) for size in (16, 24, 32)]
KMS = "encryption.kms-type"
Properties = Mapping[str, str]


def check_both_ways(java: Java, properties: Properties, key_id: str = "default") -> None:
    """Wrap in each language and unwrap in the other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        kms = from_properties(properties)
    for key in KEYS:
        ours = kms.wrap_key(key, key_id).hex()
        theirs = use(java, properties, key_id, key=key.hex(), wrapped=ours)
        assert theirs["key"] == key.hex()
        assert kms.unwrap_key(bytes.fromhex(theirs["wrapped"]), key_id) == key
        assert len(theirs["wrapped"]) == len(ours)
        assert theirs["wrapped"] != ours  # the nonce is fresh
    kms.close()


def use(java: Java, properties: Properties, key_id: str = "default", **given: str) -> Properties:
    made: Properties = java.call(
        "ags1.interop.PluginKms.use", properties=properties, key_id=key_id, **given
    )
    return made


def refusal(java: Java, properties: Properties, key_id: str = "default") -> str:
    """Return why the plug-in does not wrap."""
    with pytest.raises(JavaError) as caught:
        use(java, properties, key_id, key=KEYS[0].hex())
    return str(caught.value)


# --- a keyring ------------------------------------------------------------------------------------


@pytest.fixture
def keyring(tmp_path: Path) -> dict[str, str]:
    """The properties of a keyring with the key ``default``, which was rotated once."""
    path = str(tmp_path / "keyring.json")
    create_key(path, "default")
    LocalKms(path).rotate_key("default")
    return {KMS: "local", "kms.local.keyring": path}


def test_a_keyring(java: Java, keyring: dict[str, str]) -> None:
    check_both_ways(java, keyring)
    other = dict(keyring, **{"kms.local.keyring": keyring["kms.local.keyring"] + ".other"})
    create_key(other["kms.local.keyring"], "default")
    wrapped = LocalKms(other["kms.local.keyring"]).wrap_key(KEYS[0], "default").hex()
    with pytest.raises(JavaError, match="does not open the wrapped key"):
        use(java, keyring, wrapped=wrapped)
    with pytest.raises(JavaError, match="no keyring wrapped it"):
        use(java, keyring, wrapped="02" + wrapped[2:])
    with pytest.raises(JavaError, match="has no version 7"):
        use(java, keyring, wrapped="0100000007" + wrapped[10:])
    assert "no master key 'absent'" in refusal(java, keyring, "absent")


@pytest.mark.parametrize("in_file", [True, False])
def test_a_keyring_with_a_passphrase(
    java: Java, keyring: dict[str, str], tmp_path: Path, in_file: bool
) -> None:
    passphrase = "öffne dich"
    set_passphrase(keyring["kms.local.keyring"], passphrase.encode())
    assert "none was given" in refusal(java, keyring)
    file = tmp_path / "passphrase"
    file.touch(0o600)
    file.write_text(f"{passphrase}\n")
    given = {"passphrase-file": str(file)} if in_file else {"passphrase": passphrase}
    check_both_ways(java, keyring | {f"kms.local.{n}": v for n, v in given.items()})
    wrong = {"kms.local.passphrase": "wrong"}
    assert "does not open the keyring" in refusal(java, keyring | wrong)


@pytest.mark.parametrize("made", ["NFC", "NFD"])
@pytest.mark.parametrize("form", ["{}", "NFD {}", "{}\r\n", "\ufeff{}\r"])
def test_a_passphrase_in_each_form(
    java: Java,
    keyring: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: Literal["NFC", "NFD"],
    form: str,
) -> None:
    path = Path(keyring["kms.local.keyring"])
    # Earlier releases took a passphrase as it was given.
    monkeypatch.setattr(keyring_module, "composed", lambda passphrase: passphrase)
    set_passphrase(str(path), unicodedata.normalize(made, "öffne dich").encode())
    path.chmod(0o666)  # the passphrase protects it
    given = unicodedata.normalize(form[:3] if form[:3] == "NFD" else "NFC", "öffne dich")
    file = tmp_path / "passphrase"
    file.touch(0o600)
    file.write_bytes(form.removeprefix("NFD ").format(given).encode())
    check_both_ways(java, keyring | {"kms.local.passphrase-file": str(file)})


def test_an_unprotected_keyring_in_place_of_a_protected_one_is_refused(
    java: Java, keyring: dict[str, str]
) -> None:
    assert "which has none" in refusal(java, keyring | {"kms.local.passphrase": "any"})


def test_the_open_file_is_asked_and_not_its_path(java: Java, tmp_path: Path) -> None:
    """Somebody may exchange the file between the two."""
    private, open_to_others = tmp_path / "private", tmp_path / "open"
    for path, mode in ((private, 0o600), (open_to_others, 0o604)):
        path.write_bytes(b"content")
        path.chmod(mode)
    call = "ags1.iceberg.kms.Exchanged.check"
    assert java.call(call, path=str(private), other=str(open_to_others)) == "content"
    with pytest.raises(JavaError, match="is open to others"):
        java.call(call, path=str(open_to_others), other=str(private))


def test_a_file_is_read_while_other_threads_open_and_close_theirs(
    java: Java, tmp_path: Path
) -> None:
    """A descriptor may be closed between the look at its number and the one at its position."""
    private = tmp_path / "private"
    private.touch(0o600)
    private.write_bytes(b"content")
    call = "ags1.iceberg.kms.Exchanged.crowded"
    assert java.call(call, path=str(private), times=2000) == "content"


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604])
def test_a_keyring_that_is_open_to_others_is_refused(
    java: Java, keyring: dict[str, str], mode: int
) -> None:
    os.chmod(keyring["kms.local.keyring"], mode)
    assert "is open to others" in refusal(java, keyring)
    keyring["kms.allow-readable-files"] = "true"
    if mode == 0o620:
        assert "is open to others" in refusal(java, keyring)
    else:
        check_both_ways(java, keyring)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"current"', '"currant"'),
        lambda text: text[:-3],
        lambda text: text.replace('"version": 1', '"version": 3'),
        lambda text: text.replace('"keys"', '"keys": {}, "keys"'),
    ],
    ids=["no current", "cut", "version", "a name twice"],
)
def test_a_damaged_keyring_is_refused(java: Java, keyring: dict[str, str], change: object) -> None:
    path = Path(keyring["kms.local.keyring"])
    text = path.read_text()
    assert callable(change)
    path.write_text(change(text))
    said = refusal(java, keyring)
    assert str(path) in said
    assert not any(
        version["key"] in said
        for version in json.loads(text)["keys"]["default"]["versions"].values()
    )


# --- all ------------------------------------------------------------------------------------------


def test_the_kms_for_tests(java: Java) -> None:
    for key in KEYS:
        check_both_ways(java, {KMS: "memory", "encryption.kms.key.default": key.hex()})


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({KMS: "local", "kms.local.keyrin": "x"}, "kms.local.keyrin"),
        ({KMS: "local", "kms.local.passphrase": "x", "kms.local.passphrase-file": "y"}, "give one"),
        ({KMS: "local", "kms.allow-readable-files": "yes"}, "'true' or 'false'"),
        ({KMS: "memory"}, "no master key"),
        ({KMS: "vault", "kms.vault.url": "http://vault.example:8200"}, "not https"),
        ({KMS: "vault", "kms.vault.url": "https://a:b@vault.example"}, "not of the form"),
        ({KMS: "vault", "kms.vault.url": "https://v", "kms.vault.tokn": "x"}, "kms.vault.tokn"),
        ({KMS: "vault", "kms.vault.url": "https://v", "kms.vault.auth": "approle"}, "role-id"),
        ({KMS: "vault", "kms.vault.url": "https://v", "kms.vault.verify": "false"}, "ca-cert"),
        ({KMS: "local", "encryption.kms-impl": "a.B"}, "both KMS type"),
        ({KMS: "nowhere"}, "nowhere"),
    ],
)
def test_wrong_properties_are_refused(java: Java, properties: Properties, said: str) -> None:
    assert said in refusal(java, properties)


@pytest.mark.parametrize("secret", ["kms.local.passphrase", "encryption.kms.key.default"])
def test_no_secret_is_serialized(java: Java, keyring: dict[str, str], secret: str) -> None:
    value = KEYS[0].hex()
    if secret.startswith("encryption"):
        properties = {KMS: "memory", secret: value}
    else:
        set_passphrase(keyring["kms.local.keyring"], value.encode())
        properties = keyring | {secret: value}
    wrapped = use(java, properties, key=KEYS[1].hex())["wrapped"]
    sent = java.call("ags1.interop.PluginKms.serialized", properties=properties, wrapped=wrapped)
    assert "refused" in sent
    assert value.encode() not in bytes.fromhex(sent["bytes"])


def test_a_client_that_was_serialized_works(java: Java, keyring: dict[str, str]) -> None:
    wrapped = use(java, keyring, key=KEYS[1].hex())["wrapped"]
    sent = java.call("ags1.interop.PluginKms.serialized", properties=keyring, wrapped=wrapped)
    assert sent["key"] == KEYS[1].hex()


# --- Vault ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vault() -> Iterator[VaultServer]:
    from go_server import have_go

    if not have_go():
        unavailable("there is no Go to build Vault with")
    with VaultServer() as server:
        for name, kind in (("orders", "aes256-gcm96"), ("rsa", "rsa-2048")):
            server.request("POST", f"transit/keys/{name}", {"type": kind})
        server.request("POST", "transit/keys/derived", {"derived": True})
        for kind in ("approle", "kubernetes"):
            server.request("POST", f"sys/auth/{kind}", {"type": kind})
        every = {"path": {"transit/*": {"capabilities": ["create", "update", "read"]}}}
        server.request("PUT", "sys/policies/acl/all", {"policy": json.dumps(every)})
        yield server


def at(vault: VaultServer, **more: str) -> dict[str, str]:
    given = {"url": vault.url} | {name.replace("_", "-"): value for name, value in more.items()}
    return {KMS: "vault"} | {f"kms.vault.{name}": value for name, value in given.items()}


def test_vault_with_a_token(java: Java, vault: VaultServer, tmp_path: Path) -> None:
    check_both_ways(java, at(vault, token=vault.token), "orders")
    file = tmp_path / "token"
    file.write_text(f"{vault.token}\n")
    check_both_ways(java, at(vault, token_file=str(file)), "orders")
    properties = at(vault, token=vault.token)
    assert "has no key 'absent'" in refusal(java, properties, "absent")
    assert "does not wrap here" in refusal(java, properties, "rsa")
    assert "does not wrap here" in refusal(java, properties, "derived")
    assert "has no key '../../sys/seal'" in refusal(java, properties, "../../sys/seal")
    said = refusal(java, at(vault, token="hvs.wrong"), "orders")
    assert "the token is wrong" in said
    assert "hvs.wrong" not in said
    rotated = use(java, properties, "orders", key=KEYS[0].hex())["wrapped"]
    vault.request("POST", "transit/keys/orders/rotate", {})
    assert use(java, properties, "orders", wrapped=rotated)["key"] == KEYS[0].hex()


def test_vault_with_an_approle(java: Java, vault: VaultServer, tmp_path: Path) -> None:
    path = "auth/approle/role/jobs"
    vault.request("POST", path, {"token_policies": ["all"]})
    role_id = vault.request("GET", f"{path}/role-id")["data"]["role_id"]
    secret_id = vault.request("POST", f"{path}/secret-id")["data"]["secret_id"]
    given = {"auth": "approle", "role_id": role_id}
    check_both_ways(java, at(vault, **given, secret_id=secret_id), "orders")
    file = tmp_path / "secret-id"
    file.write_text(secret_id)
    check_both_ways(java, at(vault, **given, secret_id_file=str(file)), "orders")
    said = refusal(java, at(vault, **given, secret_id="wrong"), "orders")
    assert "refused the login by approle" in said
    wrapped = use(java, at(vault, token=vault.token), "orders", key=KEYS[0].hex())["wrapped"]
    sent = java.call(
        "ags1.interop.PluginKms.serialized",
        properties=at(vault, **given, secret_id=secret_id),
        wrapped=wrapped,
    )
    assert not any(text in bytes.fromhex(sent["bytes"]) for text in spellings(secret_id.encode()))


def test_vault_with_a_service_account(java: Java, vault: VaultServer, tmp_path: Path) -> None:
    # Vault's own auth method; only the cluster that it asks is the test's.
    class Cluster(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            user = {"username": "system:serviceaccount:jobs:spark", "uid": "1"}
            body = json.dumps({"status": {"authenticated": True, "user": user}}).encode()
            self.send_response(201)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    claims = {
        "iss": "https://kubernetes.default.svc.cluster.local",
        "sub": "system:serviceaccount:jobs:spark",
        "exp": int(time.time()) + 3600,
        "iat": int(time.time()),
        "kubernetes.io": {"namespace": "jobs", "serviceaccount": {"name": "spark", "uid": "1"}},
    }
    parts = [json.dumps(part).encode() for part in ({"alg": "RS256", "kid": "k"}, claims)]
    jwt = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in [*parts, b"s" * 256])
    (tmp_path / "jwt").write_bytes(jwt)
    with HTTPServer(("127.0.0.1", 0), Cluster) as cluster:
        threading.Thread(target=cluster.serve_forever, args=(0.01,), daemon=True).start()
        config = {"kubernetes_host": f"http://127.0.0.1:{cluster.server_port}"}
        config |= {"token_reviewer_jwt": jwt.decode()}
        config |= {"kubernetes_ca_cert": Path(certifi.where()).read_text()}
        vault.request("POST", "auth/kubernetes/config", config | {"disable_local_ca_jwt": True})
        role = {"token_policies": ["all"], "bound_service_account_namespaces": ["jobs"]}
        role["bound_service_account_names"] = ["spark"]
        vault.request("POST", "auth/kubernetes/role/reader", role)
        given = {"auth": "kubernetes", "role": "reader", "jwt_file": str(tmp_path / "jwt")}
        check_both_ways(java, at(vault, **given), "orders")
        cluster.shutdown()


def test_vault_over_tls(java: Java) -> None:
    with VaultServer(tls=True) as server:
        server.request("POST", "transit/keys/orders", {})
        properties = at(server, token=server.token)
        assert "certificate is not trusted" in refusal(java, properties, "orders")
        check_both_ways(java, properties | {"kms.vault.ca-cert": str(server.ca_cert)}, "orders")
        server.request("PUT", "sys/seal")
        given = {"kms.vault.ca-cert": str(server.ca_cert), "kms.max-attempts": "2"}
        assert "is sealed" in refusal(java, properties | given, "orders")


class Fake(Server):
    """A Vault for faults that a real one does not have on demand: a token has three uses."""

    left: dict[str, int]

    def answer(self, request: Request) -> Answer:
        if request.path.endswith("/login"):
            token = f"hvs.{len(self.left)}"
            self.left[token] = 3
            return Answer(200, json.dumps({"auth": {"client_token": token}}).encode())
        token = request.headers["x-vault-token"]
        self.left[token] -= 1
        if self.left[token] < 0:
            return Answer(403, b'{"errors": ["permission denied"]}')
        return Answer(200, json.dumps({"data": {"plaintext": "A" * 24}}).encode())


def fake(**options: Any) -> Fake:
    server = Fake(**options)
    server.left = {"t": 1000}
    return server


LOGIN = {"kms.vault.auth": "approle", "kms.vault.role-id": "r", "kms.vault.secret-id": "s"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"days": (-9, -1)}, "has expired"),
        ({"days": (1, 9)}, "not yet valid"),
        ({"host": "127.0.0.2"}, "not valid for the host"),
        ({"tls": False}, "speak TLS"),
        ({"wants_certificate": True}, "client certificate"),
    ],
    ids=["expired", "not yet valid", "another host", "no TLS", "client certificate"],
)
def test_what_is_wrong_with_tls_is_told(java: Java, options: dict[str, Any], said: str) -> None:
    server = fake(**options)
    try:
        given = {
            KMS: "vault",
            "kms.vault.url": server.url.replace("http:", "https:"),
            "kms.vault.token": "t",
            "kms.max-attempts": "1",
        }
        if options.get("tls", True):
            given["kms.vault.ca-cert"] = server.certificate
        assert said in refusal(java, given)
        if "wants_certificate" in options:
            given |= {"kms.vault.client-cert": server.chain}
            assert "private key" in refusal(java, given)
            given |= {"kms.vault.client-key": server.key}
            wrapped = (b"vault:v1:" + b"A" * 60).hex()
            assert use(java, given, wrapped=wrapped)["key"] == bytes(18).hex()
    finally:
        server.stop()


def test_tokens_of_few_uses_and_logins_that_give_none(java: Java) -> None:
    server = fake(tls=False)
    try:
        given = {KMS: "vault", "kms.vault.url": server.url} | LOGIN
        wrapped = (b"vault:v1:" + b"A" * 60).hex()
        for _ in range(10):
            assert use(java, given, wrapped=wrapped)["key"] == bytes(18).hex()
        assert len(server.left) > 3
        for body, said in (
            ({"auth": {"client_token": "", "mfa_requirement": {"id": "1"}}}, "MFA"),
            ({"auth": None, "wrap_info": {"token": "hvs.w"}}, "wraps its answer"),
        ):
            server.faults.append(Answer(200, json.dumps(body).encode()))
            told = refusal(java, given | {"kms.vault.role-id": said})
            assert said in told
            assert "hvs.w" not in told
    finally:
        server.stop()
