from collections.abc import Callable
from typing import Any

from typing_extensions import Buffer

from .key_metadata import KeyMetadata

NEW_BYTES: object

def seal_stream(
    plaintext: Buffer,
    out: object,
    km: KeyMetadata | None,
    key_size: int,
    block_size: int,
    reuse_key: bool,
    kind: type[Any] = ...,
) -> Any: ...
def open_stream(
    sealed: Buffer, out: object, km: KeyMetadata, block_size: int | None, max_block_size: int
) -> Any: ...

class MessageBatch:
    results: list[Any]
    failure: tuple[int, Exception] | None
    def stop(self) -> None: ...
    def work(self, number: int = 0) -> None: ...

class SealBatch(MessageBatch):
    def __init__(
        self, messages: list[Buffer], threads: int, key_size: int, kind: type[tuple[Any, ...]]
    ) -> None: ...

class OpenBatch(MessageBatch):
    def __init__(
        self,
        messages: list[tuple[Buffer, KeyMetadata]],
        threads: int,
        open_one: Callable[[Buffer, KeyMetadata], bytes],
    ) -> None: ...

def seal(key: Buffer, data: Buffer, aad: Buffer = b"") -> bytes: ...
def open(key: Buffer, sealed: Buffer, aad: Buffer = b"") -> bytes: ...
