"""Debian's packages, by an apt of our own: the machine's packages and lists stay as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITE = "trixie"
CONFIGURATION = """\
Dir::Etc::SourceList "{folder}/sources";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "{folder}/lists";
Dir::State::status "{folder}/installed";
Dir::Cache "{folder}";
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Sandbox::User "root";
"""


class Archive:
    """One release of Debian for one architecture. apt checks the signatures."""

    def __init__(self, folder: Path, architecture: str) -> None:
        self._folder = folder
        for name in ("lists/partial", "archives/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "installed").touch()
        configuration = CONFIGURATION.format(folder=folder, architecture=architecture)
        (folder / "apt.conf").write_text(configuration)
        place = f"[signed-by={KEYRING}] {_mirror()} {SUITE} main\n"
        (folder / "sources").write_text(f"deb {place}deb-src {place}")
        self._apt("update", "--quiet")

    def source(self, package: str) -> Path:
        """Return the authors' source of a package, as a tar file."""
        self._apt("source", "--download-only", "--only-source", package)
        (found,) = self._folder.glob(f"{package}_*.orig.tar.*z")
        return found

    def unpack(self, packages: list[str], root: Path) -> None:
        """Unpack packages, and all that they depend on, into the folder ``root``."""
        self._apt("install", "--download-only", "--yes", "--no-install-recommends", *packages)
        for package in sorted(self._folder.glob("archives/*.deb")):
            subprocess.run(["dpkg-deb", "--extract", package, root], check=True)

    def _apt(self, *arguments: str) -> None:
        environment = os.environ | {"APT_CONFIG": str(self._folder / "apt.conf")}
        subprocess.run(
            ["apt-get", *arguments],
            cwd=self._folder,
            env=environment,
            check=True,
            stdout=sys.stderr,
        )


def _mirror() -> str:
    """Return the address of the Debian mirror that this machine uses."""
    asked = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)"]
    listed = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        if line.startswith("Debian Debian "):
            return line.split()[-1]
    sys.exit("apt knows no mirror of Debian: this needs a Debian machine, after `apt-get update`")
