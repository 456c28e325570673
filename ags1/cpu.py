"""The CPUs: how many this process may use, and which of their features AES-GCM uses."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_RELEVANT = ("aes", "pclmulqdq", "avx2", "avx512f", "vaes", "vpclmulqdq", "pmull", "sha3")


def usable_cpus() -> int:
    """Return the number of CPUs that this process may keep busy: its affinity, and on Linux its
    control group's quota (version 2), rounded up."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, min(count, _cgroup_quota(count)))


def _cgroup_quota(otherwise: int) -> int:
    try:
        group = next(
            line.split("::", 1)[1]
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if line.startswith("0::")
        )
    except (OSError, StopIteration):
        return otherwise
    quotas = [otherwise]
    folder = Path("/sys/fs/cgroup") / group.lstrip("/")
    for level in (folder, *folder.parents):
        try:
            quota, period = (level / "cpu.max").read_text().split()
            if quota != "max":
                quotas.append(-(-int(quota) // int(period)))
        except (OSError, ValueError):
            pass
        if level == Path("/sys/fs/cgroup"):
            break
    return min(quotas)


def features() -> list[str]:
    """Return the CPU's instruction sets that matter to AES-GCM, by their Linux names."""
    flags: set[str] = set()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                flags = set(line.split(":", 1)[1].split())
                break
    except OSError:
        if platform.system() == "Darwin":
            import subprocess

            printed = subprocess.run(["sysctl", "hw.optional"], capture_output=True, text=True)
            flags = {"aes", "pmull"} if "FEAT_AES: 1" in printed.stdout else set()
    return [flag for flag in _RELEVANT if flag in flags]


def model() -> str:
    """Return the CPU's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
