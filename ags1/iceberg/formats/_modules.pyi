from collections.abc import Iterable
from typing import NoReturn

from typing_extensions import Buffer

class ModuleCipher:
    def __init__(self, key: Buffer, file_aad: bytes) -> None: ...
    def seal(self, modules: Iterable[tuple[int, bytes, Buffer]]) -> bytes: ...
    def seal_pages(
        self, plain: Buffer, ordinals: bytes, number: int, may_have_dictionary: bool
    ) -> tuple[int, bytes, list[int], bool, int, int]: ...
    def open(self, kind: int, ordinals: bytes, module: Buffer) -> bytes: ...
    def open_pages(
        self,
        sealed: Buffer,
        out: Buffer,
        ordinals: bytes,
        number: int,
        has_dictionary: bool,
        is_last: bool,
        is_private: bool = False,
    ) -> tuple[int, int, int, int, int]: ...
    def __reduce__(self) -> NoReturn: ...
