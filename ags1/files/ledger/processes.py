"""Which process a job runs in. A job of this machine counts as dead at once when its process is
gone."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path


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
