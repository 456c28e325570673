from typing import Any, Final, TypeAlias

from typing_extensions import Buffer

TRUE: Final[int]
FALSE: Final[int]
BYTE: Final[int]
I16: Final[int]
I32: Final[int]
I64: Final[int]
DOUBLE: Final[int]
BINARY: Final[int]
LIST: Final[int]
SET: Final[int]
MAP: Final[int]
STRUCT: Final[int]

Struct: TypeAlias = dict[int, tuple[int, Any]]
Types: TypeAlias = dict[int, int | tuple[int, Any]]
Kept: TypeAlias = dict[int, "Kept | object | None"]
PLACE: Final[object]

def parse(
    data: Buffer, types: Types | None = None, kept: Kept | None = None
) -> tuple[Struct, int]: ...
def print_struct(fields: Struct) -> bytes: ...
def value(fields: Struct, field_id: int, default: Any = None) -> Any: ...
