"""A real S3 server for the tests: MinIO's last release as a Go module, on a folder of its own.

Beside moto, which answers but stores nothing as a server does, this one keeps objects on a disk and
checks signatures. ``tests/minio`` pins it with every dependency; it is built once into the user's
cache folder (some five minutes). MinIO is under the AGPL: the tests run it, and nothing of it is
part of ags1. For a person::

    python tests/s3_server.py

starts one and prints what to export. Imports nothing of ags1.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import go_server
from aws_server import dummy_environment

SOURCE = Path(__file__).parent / "minio"
BUCKET = "bucket"
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def build() -> Path:
    """Return the path of the ``minio`` program, built if it is not there yet."""
    return go_server.build(SOURCE, "minio", "github.com/minio/minio")


@contextlib.contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Yield the environment in which the AWS SDKs talk to a server with the bucket ``BUCKET``."""
    program = str(build())
    user, password = "testing", secrets.token_hex(16)
    url = ""

    def command(port: int, folder: Path) -> list[str]:
        nonlocal url
        url = f"http://127.0.0.1:{port}"
        (folder / "data" / BUCKET).mkdir(parents=True, exist_ok=True)
        own = ["--address", f"127.0.0.1:{port}", "--console-address", "127.0.0.1:0"]
        return [program, "server", *own, "--certs-dir", f"{folder}/certs", f"{folder}/data"]

    def is_ready() -> bool:
        with _OPENER.open(f"{url}/minio/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)

    # Nothing of the user's; and it asks nobody for updates.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MINIO_")}
    environment |= {"MINIO_ROOT_USER": user, "MINIO_ROOT_PASSWORD": password}
    environment |= {"MINIO_UPDATE": "off", "MINIO_BROWSER": "off", "MINIO_CALLHOME_ENABLE": "off"}
    with go_server.serving("minio", command, environment, is_ready, password):
        keys = {"AWS_ACCESS_KEY_ID": user, "AWS_SECRET_ACCESS_KEY": password}
        yield dummy_environment(url) | keys


def main() -> None:
    if not go_server.have_go():
        sys.exit("this needs Go (https://go.dev) to build MinIO")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(KeyboardInterrupt), s3_server() as environment:
        for name, value in environment.items():
            print(f"export {name}={value}")
        print(f"# S3 with the bucket {BUCKET} until Ctrl-C", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
