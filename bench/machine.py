"""What the figures were measured on, so that they can be judged and repeated."""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Those that decide which AES-GCM code libcrypto takes.
FLAGS_THAT_MATTER = ("aes", "pclmulqdq", "avx2", "avx512f", "vaes", "vpclmulqdq", "pmull", "sve")


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    cpu_flags: tuple[str, ...]
    cpu_flags_absent: tuple[str, ...]
    cpus: int
    memory_gib: int
    kernel: str
    libcrypto: str
    python: str
    date: str

    @property
    def caption(self) -> str:
        """One line for the foot of a plot."""
        flags = " ".join(self.cpu_flags) or "none"
        return (
            f"{self.cpu} ({self.cpus} CPUs; {flags}) · {self.libcrypto} · Python {self.python} · "
            f"{self.date}"
        )


def this_machine() -> Machine:
    model, flags = _cpu()
    asked = FLAGS_THAT_MATTER[:6] if platform.machine() in ("x86_64", "AMD64") else ("aes", "pmull")
    return Machine(
        cpu=model,
        cpu_flags=tuple(flag for flag in FLAGS_THAT_MATTER if flag in flags),
        cpu_flags_absent=tuple(flag for flag in asked if flag not in flags),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        kernel=f"{platform.system()} {platform.release()}",
        libcrypto=_libcrypto(),
        python=platform.python_version(),
        date=datetime.date.today().isoformat(),
    )


def file_system(folder: Path) -> str:
    """The type of the file system that ``folder`` is on, as far as df can tell."""
    if shutil.which("df") is None:
        return "unknown"
    answer = subprocess.run(
        ["df", "--output=fstype", folder], capture_output=True, text=True, check=False
    )
    return answer.stdout.split()[-1] if answer.returncode == 0 else "unknown"


def _cpu() -> tuple[str, frozenset[str]]:
    model = platform.processor() or platform.machine()
    if sys.platform == "darwin":
        answer = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            check=False,
        )
        return answer.stdout.strip() or model, frozenset({"aes", "pmull"})
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return model, frozenset()
    facts = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    model = facts.get("model name", model)
    if "cpu family" in facts:
        # In a cloud the name alone may say no more than the vendor.
        model += f", family {facts['cpu family']}, model {facts['model']}"
    return model, frozenset(facts.get("flags", facts.get("Features", "")).split())


def _libcrypto() -> str:
    from ags1.engine import _gcm

    facts = _gcm.libcrypto()
    return f"{facts['version']} ({facts['source']})"
