"""Compiles ``evp_loop.c`` against the libcrypto that ags1 itself links, and calls it.

The shared library is kept in the user's cache folder, by content. Both libcryptos must say the
same version, or there is no limit to speak of.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import build_openssl
from ags1.engine import _gcm
from bench.material import Material
from bench.storage import cache_folder

SOURCE = Path(__file__).with_name("evp_loop.c")
_void_p, _size_t = ctypes.c_void_p, ctypes.c_size_t


class LimitError(Exception):
    """The loop can't be built against ags1's own libcrypto."""


class EvpLoop:
    """The bare loop under one key. It writes and reads ``material``'s AGS1 slots.

    libcrypto gets the blocks in pieces of ``piece_size`` bytes, or whole.
    """

    def __init__(self, material: Material, piece_size: int | None = None) -> None:
        self._library = _load()
        self._material = material
        self.piece_size = piece_size or material.block_size
        key, aad_prefix = material.key, material.aad_prefix
        self._loop = self._library.evp_loop_new(
            key, len(key), aad_prefix, len(aad_prefix), material.block_size, self.piece_size
        )
        if not self._loop:
            raise LimitError("libcrypto refused the key")
        # Held for good: while ctypes looks at a bytearray, it can't be resized.
        self._plaintext = _pointer(material.plaintext)
        self._slots = _pointer(material.sealed, 8)
        self._opened = _pointer(material.opened)
        self._slot_memory = bytearray(material.block_size + 28)
        self._slot = _pointer(self._slot_memory)

    def __del__(self) -> None:
        if getattr(self, "_loop", None):
            self._library.evp_loop_free(self._loop)

    def seal(self, again: int = 0) -> None:
        """Seal the plaintext; or ``again`` bytes, all of them the first block's."""
        size = again or self._material.size
        self._demand(
            self._library.evp_loop_seal(self._loop, self._plaintext, size, self._slots, bool(again))
        )

    def open(self, again: int = 0) -> None:
        """Open what was sealed; or ``again`` bytes, all of them the first block's."""
        size = again or self._material.size
        self._demand(
            self._library.evp_loop_open(self._loop, self._slots, size, self._opened, bool(again))
        )

    def open_file(
        self, descriptor: int, size: int, *, first_block: int = 0, keep: bool = False
    ) -> None:
        """pread and open ``size`` bytes of plaintext from ``first_block`` on.

        ``keep`` puts them one after the other into ``material.opened``; otherwise each block
        overwrites the last.
        """
        self._demand(
            self._library.evp_loop_open_file(
                self._loop, descriptor, first_block, size, self._slot, self._opened, keep
            )
        )

    def messages(self, count: int) -> None:
        """Seal and open the plaintext ``count`` times, in one call."""
        self._demand(
            self._library.evp_loop_messages(
                self._loop, self._plaintext, self._material.size, self._slots, self._opened, count
            )
        )

    def _demand(self, succeeded: int) -> None:
        if not succeeded:
            raise LimitError("the bare EVP loop failed")


def _pointer(buffer: bytearray, offset: int = 0) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * (len(buffer) - offset)).from_buffer(buffer, offset)


@functools.cache
def _load() -> ctypes.CDLL:
    facts = _gcm.libcrypto()
    library = _find_library(facts["source"], facts["version"])
    loop = ctypes.CDLL(str(_compile(library)))
    loop.evp_loop_version.restype = ctypes.c_char_p
    version = (loop.evp_loop_version() or b"").decode()
    if version != facts["version"]:
        raise LimitError(
            f"the loop would run on {version}, ags1 runs on {facts['version']}; "
            "build ags1 again, or set AGS1_OPENSSL as it was for that build"
        )
    loop.evp_loop_new.restype = _void_p
    loop.evp_loop_new.argtypes = [
        ctypes.c_char_p,
        _size_t,
        ctypes.c_char_p,
        _size_t,
        _size_t,
        _size_t,
    ]
    loop.evp_loop_free.argtypes = [_void_p]
    loop.evp_loop_seal.argtypes = [_void_p, _void_p, _size_t, _void_p, ctypes.c_int]
    loop.evp_loop_open.argtypes = [_void_p, _void_p, _size_t, _void_p, ctypes.c_int]
    loop.evp_loop_messages.argtypes = [_void_p, _void_p, _size_t, _void_p, _void_p, _size_t]
    loop.evp_loop_open_file.argtypes = [
        _void_p,
        ctypes.c_int,
        ctypes.c_uint32,
        _size_t,
        _void_p,
        _void_p,
        ctypes.c_int,
    ]
    return loop


def _find_library(source: str, version: str) -> build_openssl.Library:
    environ = dict(os.environ)
    # An absolute path in AGS1_OPENSSL is the caller's word; else what the extension says of itself.
    if not os.path.isabs(environ.get("AGS1_OPENSSL", "")):
        environ["AGS1_OPENSSL"] = source
        if source == "vendored":
            numbers = version.split()[1].split(".")
            environ["AGS1_OPENSSL_VERSION"] = ".".join(numbers[:2])
    try:
        return build_openssl.find_library(environ)
    except build_openssl.BuildError as error:
        raise LimitError(str(error)) from None


def _compile(library: build_openssl.Library) -> Path:
    static = [library.static_library] if library.static_library else []
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    hidden = [] if sys.platform == "darwin" else ["-Wl,--exclude-libs,ALL", "-Wl,--gc-sections"]
    command = [
        *compiler,
        *("-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-ffunction-sections"),
        *library.compile_args,
        str(SOURCE),
        *static,
        *library.link_args,
        *hidden,
    ]
    stamp = [SOURCE.read_text(), library.version, *command]
    for path in static:
        facts = os.stat(path)
        stamp += [str(facts.st_size), str(facts.st_mtime_ns)]
    name = hashlib.sha256("\0".join(stamp).encode()).hexdigest()[:16]
    target = cache_folder() / f"evp_loop-{name}.so"
    if not target.exists():
        half_done = target.with_suffix(f".{os.getpid()}")
        built = subprocess.run(
            [*command, "-o", str(half_done)], capture_output=True, text=True, check=False
        )
        if built.returncode:
            raise LimitError(f"evp_loop.c does not compile:\n{built.stderr}")
        half_done.rename(target)
    return target
