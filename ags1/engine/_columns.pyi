from collections.abc import Callable
from typing import Any

from .key_metadata import KeyMetadata

class Messages:
    count: int
    size: int
    is_large: bool
    def __init__(self, column: object) -> None: ...
    def __len__(self) -> int: ...

class Column:
    def __len__(self) -> int: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...

class ColumnBatch:
    failure: tuple[int, Exception] | None
    useful_threads: int
    @property
    def results(self) -> Any: ...
    def stop(self) -> None: ...
    def work(self, number: int = 0) -> None: ...

class SealColumn(ColumnBatch):
    def __init__(self, messages: Messages, threads: int, key_size: int) -> None: ...

class OpenColumn(ColumnBatch):
    def __init__(
        self,
        sealed: Messages,
        key_metadata: Messages,
        threads: int,
        open_one: Callable[[bytes, KeyMetadata], bytes],
    ) -> None: ...
