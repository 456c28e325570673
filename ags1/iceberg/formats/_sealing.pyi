from collections.abc import Iterable
from typing import Final

from typing_extensions import Buffer

MODULE_OVERHEAD: Final[int]

class ModuleSealer:
    def __init__(self, key: Buffer, file_aad: bytes) -> None: ...
    def seal(self, modules: Iterable[tuple[bytes, Buffer]]) -> bytes: ...
