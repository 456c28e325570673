"""Builds OpenSSL 3.5 with its FIPS provider, and prints the folder: a prefix for ``AGS1_OPENSSL``.

It is built once and kept in the user's cache folder. libcrypto is static, so that it reads its own
configuration and Python's ``ssl`` keeps the system's. In that configuration the FIPS provider is
the default. The provider is the released one's source; no laboratory has tested this build of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import build_openssl

CRATE = build_openssl.CRATES["3.5"]
CONFIGURATION = """\
config_diagnostics = 1
openssl_conf = main
.include {prefix}/ssl/fipsmodule.cnf
[main]
providers = providers
alg_section = algorithms
[providers]
fips = fips_sect
base = base_sect
[base_sect]
activate = 1
[algorithms]
default_properties = fips=yes
[fips_sect]
module = {prefix}/lib/ossl-modules/fips.so
"""


def build(prefix: Path, scratch: Path) -> None:
    crate_file = build_openssl._crate_file(CRATE, os.environ)
    source = build_openssl._unpack(crate_file, CRATE, scratch)

    def run(*command: object) -> None:
        subprocess.run(list(map(str, command)), cwd=source, check=True, stdout=sys.stderr)

    # The package leaves out the files from which the provider's list of symbols is made.
    (source / "util" / "providers.num").write_text("OSSL_provider_init 1 * EXIST::FUNCTION:\n")
    run(
        *("perl", "./Configure", "enable-fips", "no-shared", "no-tests", "no-docs", "no-legacy"),
        f"--openssldir={prefix}/ssl",
    )
    maker = source / "util" / "mkdef.pl"
    maker.touch()
    os.utime(maker, (1, 1))
    (source / "providers" / "fips.ld").write_text("{ global: OSSL_provider_init; local: *; };\n")
    jobs = f"-j{os.cpu_count()}"
    run("make", jobs, "build_generated")
    run("make", jobs, "libcrypto.a", "providers/fips.so", "apps/openssl")
    shutil.rmtree(prefix, ignore_errors=True)
    shutil.copytree(source / "include" / "openssl", prefix / "include" / "openssl")
    modules = prefix / "lib" / "ossl-modules"
    modules.mkdir(parents=True)
    (prefix / "ssl").mkdir()
    shutil.copy(source / "providers" / "fips.so", modules)
    # It tests the provider, and writes down its checksum.
    run(
        *("apps/openssl", "fipsinstall", "-pedantic", "-module", modules / "fips.so"),
        *("-out", prefix / "ssl" / "fipsmodule.cnf"),
    )
    # It names the file that was just made, without which no program of this OpenSSL starts.
    (prefix / "ssl" / "openssl.cnf").write_text(CONFIGURATION.format(prefix=prefix))
    # This is looked for, so it comes last.
    shutil.copy(source / "libcrypto.a", prefix / "lib")


def main() -> None:
    folder = build_openssl._cache_folder(os.environ).with_name("fips")
    prefix = folder / CRATE.openssl_version
    if not build_openssl._is_whole(prefix):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="ags1-fips-") as scratch:
            build(prefix, Path(scratch))
    print(prefix)


if __name__ == "__main__":
    main()
