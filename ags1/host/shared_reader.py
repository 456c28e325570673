"""A file that several threads of another library read, by ``seek`` and ``read``."""

from __future__ import annotations

import io
import threading
from typing import Any


class SharedReader(io.RawIOBase):
    """A file that several threads read, each after its own ``seek``.

    DuckDB reads a part of a file by ``seek`` and ``read``, and other threads may come between the
    two. A thread's ``read`` after its ``seek`` begins where it has sought. A ``read`` without one
    goes on where the last ``read`` of any thread ended; then no earlier ``seek`` counts.
    """

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file
        self._lock = threading.Lock()
        self._sought: dict[int, int] = {}
        self._position = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        position: int = base + offset
        with self._lock:
            self._position = self._sought[threading.get_ident()] = position
        return position

    def tell(self) -> int:
        return self._sought.get(threading.get_ident(), self._position)

    def read(self, size: int = -1) -> Any:
        with self._lock:
            at = self._sought.pop(threading.get_ident(), None)
            if at is None:
                at = self._position
                self._sought.clear()
            count = max(0, self._file.size - at)
            count = count if size < 0 else min(size, count)
            self._position = at + count
        return self._file.pread(at, count)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
