"""A peer in another process, which stays alive between rounds and is spoken to in lines.

Commands and their answers:

    key HEX HEX     the key and the AAD prefix                      ok
    load PATH       the plaintext, into kept memory                 ok
    seal            the plaintext, into kept memory                 the nanoseconds it took
    open            what was sealed last, into kept memory          the nanoseconds it took
    check           whether the plaintext came back                 ok
    dump PATH       write what was sealed last into a file          ok
    take PATH       have what is in a file opened next              ok

Anything that fails answers ``error`` and a reason.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ags1 import layout
from ags1.hazmat import BlockCipher
from bench.material import Material
from bench.storage import cache_folder


class PeerError(Exception):
    """A peer can't be started, or gave a wrong answer."""


class LineProcess:
    """The process and the conversation with it."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerError(f"the process died: {error}") from None
        answer = self._process.stdout.readline().strip()
        if not answer or answer.startswith("error"):
            raise PeerError(answer or "the process died")
        return answer

    def seconds(self, line: str) -> float:
        return int(self.ask(line)) / 1e9

    def load(self, material: Material) -> None:
        self.ask(f"key {material.key.hex()} {material.aad_prefix.hex()}")
        with tempfile.NamedTemporaryFile(dir=cache_folder()) as file:
            file.write(material.plaintext)
            file.flush()
            self.ask(f"load {file.name}")

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ProcessPeer:
    """An implementation in another process; those of AGS1 also know ``dump`` and ``take``."""

    name: str
    writes_ags1 = True
    rounds: int | None = None
    warm_up_bytes = 0
    """Sealed and opened before anything is timed."""

    def missing(self) -> str | None:
        raise NotImplementedError

    def version(self) -> str:
        raise NotImplementedError

    def command(self) -> Sequence[str | Path]:
        """What to run, built first if need be. Raises PeerError."""
        raise NotImplementedError

    def start(self, material: Material) -> None:
        if material.block_size != layout.DEFAULT_BLOCK_SIZE:
            raise PeerError("it writes blocks of 1 MiB only")
        self._process = LineProcess(self.command())
        try:
            self._process.load(material)
            for _ in range(max(1, self.warm_up_bytes // max(material.size, 1))):
                self.seal()
                self.open()
            if self.writes_ags1:
                self._check_format(material)
        except PeerError:
            self.stop()
            raise

    def _check_format(self, material: Material) -> None:
        """Each must open what the other sealed, or the comparison would mean nothing."""
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            path = Path(folder, "sealed")
            self._process.ask(f"dump {path}")
            sealed = memoryview(path.read_bytes())
            cipher = BlockCipher(material.key, material.aad_prefix)
            cipher.open_blocks(sealed[layout.HEADER_SIZE :], material.opened)
            material.check_opened()
            cipher.seal_blocks(
                material.plaintext, memoryview(material.sealed)[layout.HEADER_SIZE :]
            )
            path.write_bytes(material.sealed)
            self._process.ask(f"take {path}")
            self.open()
            self.check()

    def seal(self) -> float:
        return self._process.seconds("seal")

    def open(self) -> float:
        return self._process.seconds("open")

    def check(self) -> None:
        self._process.ask("check")

    def stop(self) -> None:
        self._process.stop()


def run_quietly(command: Sequence[str | Path], what: str, folder: Path | None = None) -> None:
    """Run a build tool; raise PeerError with the end of what it said when it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if done.returncode:
        last_lines = " / ".join(done.stdout.strip().splitlines()[-3:])
        raise PeerError(f"{what} failed: {last_lines}")
