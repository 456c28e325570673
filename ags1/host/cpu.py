"""The CPUs: how many this process may use, in a container too, and which of their features AES-GCM
uses."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import time
from pathlib import Path

# Where OpenSSL notes a feature: the word of its variable OPENSSL_ia32cap, and the bit (its manual
# page of that name). It leaves out AVX-512 by its own choice on some CPUs.
_IA32CAP = {"aes": (0, 57), "pclmulqdq": (0, 33), "vaes": (1, 41), "vpclmulqdq": (1, 42)}
_RELEVANT = ("aes", "pclmulqdq", "avx2", "avx512f", "vaes", "vpclmulqdq", "pmull", "sha3")


def usable_cpus() -> int:
    """Return the number of CPUs that this process may keep busy: its affinity, and on Linux its
    control group's quota (version 2), rounded up."""
    try:
        count = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # macOS, and a sandbox that forbids the call
        count = os.cpu_count() or 1
    quota = _cgroup_quota()
    return count if quota is None else max(1, min(count, quota))


# The CPUs of the control group's quota (None: without one), and when that is looked up again, by
# time.monotonic(). The quota of a running container can be changed.
_quota: tuple[float, int | None] = (0.0, None)
_QUOTA_SECONDS = 1.0


def _cgroup_quota() -> int | None:
    global _quota
    until, quota = _quota
    now = time.monotonic()
    if now >= until:
        quota = _read_quota()
        _quota = now + _QUOTA_SECONDS, quota
    return quota


def _read_quota() -> int | None:
    try:
        group = next(
            line.split("::", 1)[1]
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if line.startswith("0::")
        )
    except (OSError, StopIteration):
        return None
    quotas = []
    folder = Path("/sys/fs/cgroup") / group.lstrip("/")
    for level in (folder, *folder.parents):
        with contextlib.suppress(OSError, ValueError):  # ValueError: the quota is "max"
            quota, period = map(int, (level / "cpu.max").read_text().split())
            quotas.append(-(-quota // period))
        if level == Path("/sys/fs/cgroup"):
            break
    return min(quotas, default=None)


def features() -> list[str]:
    """Return the CPU's instruction sets that matter to AES-GCM, by their Linux names."""
    flags = set(_cpuinfo("flags", "Features").split())
    if platform.system() == "Darwin":
        import subprocess

        printed = subprocess.run(["sysctl", "hw.optional"], capture_output=True, text=True)
        flags = {"aes", "pmull"} if "FEAT_AES: 1" in printed.stdout else set()
    return [flag for flag in _RELEVANT if flag in flags]


def unused(libcrypto: str) -> list[str]:
    """Return the features of this CPU that libcrypto does not use. ``libcrypto`` is what it says of
    the CPU (``OPENSSL_CPU_INFO``)."""
    found = re.search(r"OPENSSL_ia32cap=(0x[0-9a-f]+):(0x[0-9a-f]+)", libcrypto)
    if not found:
        return []
    words = [int(word, 16) for word in found.groups()]
    return [
        name
        for name in features()
        if name in _IA32CAP and not words[_IA32CAP[name][0]] >> _IA32CAP[name][1] & 1
    ]


def model() -> str:
    """Return the CPU's name."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cpuinfo(*fields: str) -> str:
    """Return the first value of one of Linux's fields, "" if there is none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(fields):
                return line.split(":", 1)[1].strip()
    return ""
