"""Other implementations to compare with, each optional, all behind the one protocol ``Peer``.

A peer that this machine lacks is named and left out. Those that write AGS1 share key and buffers
with ags1 (``bench.material``), so each can open what another sealed; that is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bench.material import Material

from .aws_sdk import AwsEncryptionSdk
from .cobblestone import Cobblestone
from .iceberg_java import IcebergJava
from .process import PeerError
from .pyca import PycaInto, PycaJoined, PycaNaive
from .rust import FastFloe, IcebergRust
from .tink_streaming import TinkStreaming

__all__ = [
    "ALL_PEERS",
    "IcebergJava",
    "IcebergRust",
    "Peer",
    "PeerError",
    "PycaInto",
    "PycaJoined",
    "PycaNaive",
    "TinkStreaming",
]


class Peer(Protocol):
    """One implementation, sealing and opening one buffer again and again.

    ``seal`` and ``open`` return the seconds they took by the peer's own clock: some peers live in
    another process, and talking to it is not their work.
    """

    name: str
    writes_ags1: bool
    rounds: int | None
    """At most so many rounds, for a peer too slow to wait for."""

    def missing(self) -> str | None:
        """What this machine lacks to run it, or None."""

    def version(self) -> str:
        """Which release of it this is."""

    def start(self, material: Material) -> None:
        """Get ready and warm up. Raises PeerError."""

    def seal(self) -> float: ...

    def open(self) -> float: ...

    def check(self) -> None:
        """Raise PeerError unless the last ``open`` gave the plaintext back."""

    def stop(self) -> None: ...


# The last two take minutes to build the first time: they are measured only when asked for.
ALL_PEERS: dict[str, Callable[[], Peer]] = {
    "cryptography": PycaInto,
    "naive": PycaNaive,
    "joined": PycaJoined,
    "cobblestone": Cobblestone,
    "java": IcebergJava,
    "tink": TinkStreaming,
    "aws": AwsEncryptionSdk,
    "rust": IcebergRust,
    "floe": FastFloe,
}
