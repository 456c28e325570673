from collections.abc import Callable
from typing import Any

from typing_extensions import Buffer

from ._arrow_arrays import Messages
from .key_metadata import KeyMetadata

class ColumnBatch:
    failure: tuple[int, Exception] | None
    useful_threads: int
    @property
    def results(self) -> Any: ...
    def stop(self) -> None: ...
    def wipe(self) -> None: ...
    def work(self, number: int = 0) -> None: ...

class SealColumn(ColumnBatch):
    def __init__(
        self, messages: Messages, threads: int, key_size: int, out: Buffer | None = None
    ) -> None: ...

class OpenColumn(ColumnBatch):
    def __init__(
        self,
        sealed: Messages,
        key_metadata: Messages,
        threads: int,
        open_one: Callable[[bytes, KeyMetadata], bytes],
        out: Buffer | None = None,
    ) -> None: ...
