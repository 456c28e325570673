"""A real Vault for the tests, built from its last release under the MPL.

``tests/vault`` is a Go module of three lines around ``vault``'s own command, with every dependency
pinned. It is built once into the user's cache folder (some five minutes) and started in its
development mode: in memory, on 127.0.0.1, gone when its owner is. For a person::

    python tests/vault_server.py

starts one and prints what to export. Imports nothing of ags1.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent / "vault"
FILES = ("go.mod", "go.sum", "main.go")
# Straight to it, whatever proxy the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def have_go() -> bool:
    return shutil.which("go") is not None


def build() -> Path:
    """Return the path of the ``vault`` program, built if it is not there yet."""
    environment = os.environ | {"GOWORK": "off", "GOFLAGS": ""}
    version = subprocess.run(
        ["go", "env", "GOVERSION", "GOOS", "GOARCH"],
        env=environment,
        cwd=SOURCE,
        capture_output=True,
        check=True,
    ).stdout
    content = b"".join((SOURCE / name).read_bytes() for name in FILES)
    name = "vault-" + hashlib.sha256(content + version).hexdigest()[:16]
    folder = cache_home() / "ags1" / "vault"
    program = folder / name
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists():  # another process built it while this one waited
            return program
        print(f"building {program}, which takes some minutes", file=sys.stderr)
        new = folder / f"{name}.new"
        command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false"]
        command += ["-ldflags", "-s -w", "-o", str(new), "."]
        done = subprocess.run(
            command, env=environment, cwd=SOURCE, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"vault does not build:\n{done.stdout}{done.stderr}"[-4000:])
        new.rename(program)
    return program


def cache_home() -> Path:
    """Return the user's cache folder by the XDG rules."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    return Path(folder) if os.path.isabs(folder) else Path.home() / ".cache"


class VaultServer:
    """``with VaultServer() as vault:`` a server with transit enabled at ``vault.url``, whose root
    token is ``vault.token``. With ``tls`` it has a certificate signed by ``vault.ca_cert``."""

    def __init__(self, *, tls: bool = False) -> None:
        self._stack = contextlib.ExitStack()
        self.token = secrets.token_hex(16)
        self.tls = tls
        self.url = ""

    def __enter__(self) -> VaultServer:
        program = build()
        with self._stack:
            folder = Path(
                self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ags1-vault-"))
            )
            self._folder = folder
            self._start(program, folder)
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

    def _start(self, program: Path, folder: Path) -> None:
        for attempt in range(3):
            port = _free_port()
            self.url = f"http{'s' if self.tls else ''}://127.0.0.1:{port}"
            command = [str(program), "server", "-dev-no-store-token"]
            command += ["-dev-tls", f"-dev-tls-cert-dir={folder}"] if self.tls else ["-dev"]
            command += [f"-dev-listen-address=127.0.0.1:{port}"]
            command += [f"-dev-root-token-id={self.token}"]
            # Nothing of the user's: neither a configuration nor a token that is theirs.
            environment = {k: v for k, v in os.environ.items() if not k.startswith("VAULT_")}
            log = folder / "vault.log"
            with open(log, "wb") as output:
                server = subprocess.Popen(
                    command,
                    env=environment | {"HOME": str(folder)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # Ctrl-C is for us
                )
            self._stack.callback(_stop, server)
            self._stack.enter_context(_watchdog(server, folder))
            if self._healthy(server):
                return
            said = log.read_text(errors="replace")[-3000:].replace(self.token, "…")
            if server.poll() is None or "address already in use" not in said or attempt == 2:
                raise RuntimeError(f"vault did not start:\n{said}")

    def _healthy(self, server: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + 60
        while server.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError):
                if self.request("GET", "sys/health")["sealed"] is False:
                    return True
            time.sleep(0.05)
        return False


@contextlib.contextmanager
def _watchdog(server: subprocess.Popen[bytes], folder: Path) -> Any:
    # However this process ends, its end of the pipe is closed, and the shell's `read` returns.
    watchdog = subprocess.Popen(
        ["sh", "-c", 'read _; kill -9 "$0"; rm -rf "$1"', str(server.pid), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        _stop(watchdog)
        assert watchdog.stdin is not None
        watchdog.stdin.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


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
