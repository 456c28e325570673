"""Which job writes which files: claims, for ledgers whose storage has no lock that ends with a
process.

A claim is alive as long as its job renews it, every ``RENEW_SECONDS``. If it was not renewed for
``LEASE_SECONDS``, its job counts as dead, and the next job takes over what it has left. A job of
this machine counts as dead at once when its process is gone. The machines' clocks have to agree to
within a minute or two. Knows nothing of where claims are stored.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

LEASE_SECONDS = 600
RENEW_SECONDS = 120


class Claim(NamedTuple):
    """A claim to write the files below ``roots`` ("" is any file). ``process`` identifies the
    process that made it, ``renewed_ms`` is the time of its last renewal, 0 after its end."""

    claim_id: str
    roots: tuple[str, ...]
    process: str
    renewed_ms: int

    def meets(self, roots: Iterable[str]) -> bool:
        """Whether a file may be below a root of the claim and one of ``roots``."""
        roots = list(roots)
        return any(_is_below(a, b) or _is_below(b, a) for a in self.roots for b in roots)

    def is_alive(self, at_ms: int) -> bool:
        """Whether the job of the claim may still write at a time."""
        lease_ends = self.renewed_ms + LEASE_SECONDS * 1000
        return at_ms < lease_ends and not is_gone(self.process)

    def refusal(self, location: str, at_ms: int) -> BlockingIOError:
        """Return the error for a job that wants to write the same files."""
        seen = max(0, at_ms - self.renewed_ms) // 1000
        message = (
            f"another job, {self.claim_id}, is writing files of {self.roots[0] or 'any folder'} "
            f"with this ledger ({process_name(self.process)}, last seen "
            f"{seen} s ago): wait for it. If it is dead, this ledger is free {LEASE_SECONDS // 60} "
            f"minutes after it was last seen, or after: ags1 spark ledger release {location} "
            f"{self.claim_id}"
        )
        return BlockingIOError(errno.EAGAIN, message, location)


def this_process() -> str:
    """Return what tells this process from all others, also in other containers and after a
    restart: JSON with the host's name, the boot, the space of process ids, and the process."""
    pid = os.getpid()
    return json.dumps(
        {"host": socket.gethostname(), "pid": pid, "space": _space(), "start": _start_of(pid)}
    )


def process_name(process: str) -> str:
    """Return what to call a process in messages."""
    facts = _facts(process)
    return f"process {facts.get('pid')} of {facts.get('host')}"


def now_ms() -> int:
    """Return the time in ms since 1970."""
    return time.time_ns() // 1_000_000


def _is_below(path: str, root: str) -> bool:
    return not root or f"{path.rstrip('/')}/".startswith(f"{root.rstrip('/')}/")


def is_gone(process: str) -> bool:
    """Whether a process is known to have ended. Processes of other machines are never known."""
    facts = _facts(process)
    space = _space()
    pid, start = facts.get("pid"), facts.get("start")
    if not space or facts.get("space") != space or not isinstance(pid, int) or not start:
        return False
    return _start_of(pid) != start


def _facts(process: str) -> dict[str, object]:
    try:
        facts = json.loads(process)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _space() -> str:
    """Return the running kernel and the name space of process ids, "" if they are unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_of(pid: int) -> str:
    """Return when a process began, in the kernel's ticks; "" if there is no such process."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name of the program is in parentheses, and may contain any character.
    fields = status.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]
