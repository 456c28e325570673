"""An AWS KMS and STS on this machine: moto's server, on a free port of 127.0.0.1.

For tests, ``aws_server()``; for trying things out, ``python -m tests.aws_server`` (see its
output). Needs ``moto[kms,sts,server]``. It knows nobody's real credentials and keeps nothing.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from botocore import loaders, session

# Otherwise botocore parses a service's model, up to megabytes of JSON, again for each session. The
# clients of one session share what its loader has parsed; here, those of all sessions do.
session.create_loader = functools.cache(loaders.create_loader)

REGION = "us-east-1"
ACCOUNT = "123456789012"  # whose keys moto keeps, whoever signs


def dummy_environment(endpoint: str) -> dict[str, str]:
    """Return the environment in which the AWS SDKs talk to ``endpoint``, and to nobody else."""
    return {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }


@contextmanager
def aws_server(port: int = 0) -> Iterator[str]:
    """Yield the server's URL. ``port`` 0 is a free one."""
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def main() -> None:
    # Before the server's thread begins, which inherits it: sigwait takes what is blocked.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    with aws_server() as endpoint:
        for name, value in dummy_environment(endpoint).items():
            print(f"export {name}={value}")
        print("# AWS KMS and STS until Ctrl-C", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
