"""A real Vault for the tests, built from its last release under the MPL.

``tests/vault`` is a Go module of three lines around ``vault``'s own command, with every dependency
pinned. It is built once into the user's cache folder (some five minutes) and started in its
development mode: in memory, on 127.0.0.1, gone when its owner is. For a person::

    python tests/vault_server.py

starts one and prints what to export. Imports nothing of ags1.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import go_server
from go_server import have_go

SOURCE = Path(__file__).parent / "vault"
# Straight to it, whatever proxy the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def build() -> Path:
    """Return the path of the ``vault`` program, built if it is not there yet."""
    return go_server.build(SOURCE, "vault")


class VaultServer:
    """``with VaultServer() as vault:`` a server with transit enabled at ``vault.url``, whose root
    token is ``vault.token``. With ``tls`` it has a certificate signed by ``vault.ca_cert``."""

    def __init__(self, *, tls: bool = False) -> None:
        self._stack = contextlib.ExitStack()
        self.token = secrets.token_hex(16)
        self.tls = tls
        self.url = ""

    def __enter__(self) -> VaultServer:
        program = str(build())

        def command(port: int, folder: Path) -> list[str]:
            self._folder = folder
            self.url = f"http{'s' if self.tls else ''}://127.0.0.1:{port}"
            tls = ["-dev-tls", f"-dev-tls-cert-dir={folder}"] if self.tls else ["-dev"]
            address = f"-dev-listen-address=127.0.0.1:{port}"
            token = f"-dev-root-token-id={self.token}"
            return [program, "server", "-dev-no-store-token", *tls, address, token]

        # Nothing of the user's: neither a configuration nor a token that is theirs.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("VAULT_")}
        with self._stack:
            self._stack.enter_context(
                go_server.serving("vault", command, environment, self._is_ready, self.token)
            )
            self.request("POST", "sys/mounts/transit", {"type": "transit"})
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    @property
    def ca_cert(self) -> Path:
        return self._folder / "vault-ca.pem"

    def request(
        self, method: str, path: str, body: Any = None, *, token: str | None = None
    ) -> dict[str, Any]:
        """Ask the API by plain urllib. Raises urllib.error.HTTPError."""
        request = urllib.request.Request(
            f"{self.url}/v1/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"X-Vault-Token": self.token if token is None else token},
        )
        opener = _OPENER
        if self.tls:
            context = ssl.create_default_context(cafile=str(self.ca_cert))
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
            )
        with opener.open(request, timeout=30) as answer:
            data = answer.read()
        return json.loads(data) if data else {}

    def _is_ready(self) -> bool:
        return self.request("GET", "sys/health")["sealed"] is False


def main() -> None:
    if not have_go():
        sys.exit("this needs Go (https://go.dev) to build Vault")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(KeyboardInterrupt), VaultServer() as vault:
        vault.request("POST", "transit/keys/orders", {})
        print(f"export VAULT_ADDR={vault.url}\nexport VAULT_TOKEN={vault.token}")
        print("# transit has one key, orders. Ctrl-C stops the server.", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
