"""What comes out of the build: which libcrypto is taken, and what a wheel holds.

The wheel's tests take the wheel that AGS1_WHEEL names, or build one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from types import ModuleType

import pytest
import test_docs

import ags1

ROOT = Path(__file__).resolve().parents[1]

# Each half needs OpenSSL to work; they run in both orders, in fresh processes.
USE_SSL = """
import hashlib, ssl
ssl.create_default_context()
assert hashlib.sha256(b"").hexdigest().startswith("e3b0c442")
"""
USE_AGS1 = """
import ags1
sealed, km = ags1.encrypt(b"flights" * 100_000)
assert ags1.decrypt(sealed, km) == b"flights" * 100_000
"""


def load_build_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_openssl", ROOT / "build_openssl.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


build = load_build_script()


# --- which libcrypto ---------------------------------------------------------------------------


@pytest.fixture
def nothing_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment without cargo and with empty caches."""
    monkeypatch.setenv("CARGO_HOME", str(tmp_path / "cargo"))
    monkeypatch.setenv("CARGO", str(tmp_path / "no-cargo-here"))
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_vendored_without_cargo_names_the_ways_out(nothing_cached: dict[str, str]) -> None:
    with pytest.raises(build.BuildError, match="AGS1_OPENSSL_CRATE"):
        build.find_library({"AGS1_OPENSSL": "vendored", **nothing_cached})


def test_a_source_with_another_checksum_is_refused(
    tmp_path: Path, nothing_cached: dict[str, str]
) -> None:
    crate = tmp_path / "openssl-src.crate"
    crate.write_bytes(b"not OpenSSL")
    environ = {"AGS1_OPENSSL": "vendored", "AGS1_OPENSSL_CRATE": str(crate), **nothing_cached}
    with pytest.raises(build.BuildError, match=hashlib.sha256(b"not OpenSSL").hexdigest()):
        build.find_library(environ)
    assert not list((tmp_path / "cache").glob("**/libcrypto.a"))


def test_auto_takes_a_system_library_that_is_new_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_probe", lambda *args: "3.5.1")
    library = build.find_library({})
    assert (library.source, library.version, library.static_library) == ("system", "3.5.1", None)


def test_auto_falls_back_on_an_old_system_library_with_a_warning(
    nothing_cached: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def probe(compile_args: object, link_args: object, oldest: tuple[int, int]) -> str:
        if oldest > (3, 0):
            raise build.BuildError("the OpenSSL found is 3.0.2")
        return "3.0.2"

    monkeypatch.setattr(build, "_probe", probe)
    assert build.find_library(nothing_cached).source == "system"
    assert "WARNING: ags1 will use OpenSSL 3.0.2" in capfd.readouterr().err


def test_auto_with_nothing_at_all_says_what_is_missing(
    nothing_cached: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(*args: object) -> str:
        raise build.BuildError("no OpenSSL 3")

    monkeypatch.setattr(build, "_probe", probe)
    with pytest.raises(build.BuildError, match=r"(?s)The system's: no OpenSSL 3.*Vendored: cargo"):
        build.find_library(nothing_cached)


def test_a_cached_build_is_taken_as_it_is(
    nothing_cached: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def make(crate: object, cc: object, arguments: object, done: Path, environ: object) -> None:
        (done / "lib").mkdir(parents=True)
        (done / "lib" / "libcrypto.a").touch()
        made.append(done)

    monkeypatch.setattr(build, "_build", make)
    environ = {"AGS1_OPENSSL": "vendored", **nothing_cached}
    assert build.find_library(environ) == build.find_library(environ)
    assert build.find_library({**environ, "AGS1_OPENSSL_VERSION": "3.5"}).version == "3.5.5"
    assert len(made) == 2


@pytest.mark.parametrize("choice", ["statik", "relative/prefix", "/no/such/prefix"])
def test_a_wrong_choice_is_named(choice: str) -> None:
    with pytest.raises(build.BuildError, match=re.escape(choice)):
        build.find_library({"AGS1_OPENSSL": choice})


def test_the_conda_recipe_asks_for_what_the_package_needs() -> None:
    yaml = pytest.importorskip("yaml", reason="pip install ags1[test]")
    project = (ROOT / "pyproject.toml").read_text()
    recipe = yaml.safe_load((ROOT / "docs" / "packaging" / "recipe.yaml").read_text())
    assert f'version = "{recipe["context"]["version"]}"' in project
    assert recipe["build"]["script"]["env"] == {"AGS1_OPENSSL": "system"}

    def listed(name: str) -> set[str]:
        (found,) = re.findall(rf"^{name} = \[(.*)\]$", project, re.MULTILINE)
        return set(re.findall(r'"(.*?)"', found))

    def in_recipe(name: str) -> set[str]:
        return {wanted.replace(" ", "") for wanted in recipe["requirements"][name]}

    assert listed("dependencies") == in_recipe("run") - {"python"}
    assert {wanted.lower() for wanted in listed("requires")} <= in_recipe("host")


# --- the wheel ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("AGS1_WHEEL")
    if named:
        return Path(named)
    if sys.platform != "linux":
        pytest.skip("wheels are repaired by auditwheel here; cibuildwheel does it elsewhere")
    pytest.importorskip("build", reason="pip install ags1[test]")
    pytest.importorskip("auditwheel", reason="pip install ags1[test]")
    folder = tmp_path_factory.mktemp("wheel")
    env = {
        **os.environ,
        "AGS1_OPENSSL": "vendored",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    run = [sys.executable, "-m"]
    raw, repaired = folder / "raw", folder / "repaired"
    subprocess.run([*run, "build", "--outdir", str(raw), str(ROOT)], env=env, check=True)
    repair = [*run, "auditwheel", "repair", "--wheel-dir", str(repaired)]
    subprocess.run([*repair, *map(str, raw.glob("*.whl"))], env=env, check=True)
    (made,) = repaired.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean virtual environment's folder with nothing but the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    return folder


@pytest.fixture(scope="module")
def extensions(installed: Path) -> list[Path]:
    found = sorted(installed.glob("lib/python*/site-packages/ags1/**/*.so"))
    assert "_gcm" in {path.name.split(".")[0] for path in found}
    return found


def run_python(installed: Path, code: str) -> None:
    # -I, in a folder of no project: the installed package, and not the source tree.
    subprocess.run([installed / "bin" / "python", "-I", "-c", code], cwd=installed, check=True)


def needs(program: str) -> str:
    return shutil.which(program) or pytest.skip(f"no {program} on this machine")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="GNU nm")
def test_extensions_export_nothing_but_their_start(extensions: list[Path]) -> None:
    nm = needs("nm")
    for path in extensions:
        listed = subprocess.run(
            [nm, "-D", "--defined-only", path], capture_output=True, text=True, check=True
        ).stdout
        names = [line.split()[-1] for line in listed.splitlines()]
        assert names == [f"PyInit_{path.name.split('.')[0]}"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ELF")
def test_extensions_depend_on_no_libcrypto_and_no_folder(extensions: list[Path]) -> None:
    objdump = needs("objdump")
    for path in extensions:
        listed = subprocess.run([objdump, "-p", path], capture_output=True, text=True, check=True)
        assert not re.search(r"NEEDED.*lib(crypto|ssl)|RPATH|RUNPATH", listed.stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64's instructions")
@pytest.mark.skipif(sys.platform != "linux", reason="GNU objdump")
def test_vaes_code_is_inside(extensions: list[Path]) -> None:
    objdump = needs("objdump")
    (gcm,) = (path for path in extensions if path.name.startswith("_gcm."))
    code = subprocess.run([objdump, "-d", gcm], capture_output=True, text=True, check=True).stdout
    assert len(re.findall(r"vaesenc.*zmm", code)) > 1000


@pytest.mark.slow
def test_only_the_block_cipher_holds_a_libcrypto(extensions: list[Path]) -> None:
    version = re.compile(rb"OpenSSL [0-9]+\.[0-9]+\.[0-9]+ ")
    holders = [path for path in extensions if version.search(path.read_bytes())]
    assert [path.name.split(".")[0] for path in holders] == ["_gcm"]


@pytest.mark.slow
@pytest.mark.parametrize("code", [USE_SSL + USE_AGS1 + USE_SSL, USE_AGS1 + USE_SSL + USE_AGS1])
def test_works_beside_pythons_own_ssl(installed: Path, code: str) -> None:
    run_python(installed, code)


@pytest.mark.slow
def test_the_wheel_says_that_its_openssl_is_its_own(installed: Path) -> None:
    run_python(
        installed,
        "from ags1.engine._gcm import libcrypto\n"
        "assert libcrypto()['source'] == 'vendored', libcrypto()",
    )


@pytest.mark.slow
def test_the_wheel_names_the_openssl_inside(installed: Path) -> None:
    (path,) = installed.glob("lib/python*/site-packages/ags1-*.dist-info/sboms/openssl.cdx.json")
    bill = json.loads(path.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    (openssl,) = bill["components"]
    run_python(
        installed,
        "from ags1.engine import _gcm\n"
        f"assert _gcm.libcrypto()['version'].split()[1] == {openssl['version']!r}",
    )


@pytest.mark.slow
def test_the_wheel_is_typed_and_holds_no_source(installed: Path) -> None:
    (package,) = installed.glob("lib/python*/site-packages/ags1")
    assert (package / "py.typed").is_file()
    assert {path.stem for path in package.rglob("*.pyi")} >= {"_gcm"}
    assert not [path for path in package.rglob("*") if path.suffix in {".pyx", ".pxd", ".c"}]


@pytest.mark.slow
def test_the_wheel_has_the_plugin_for_java_if_it_was_built(installed: Path) -> None:
    (package,) = installed.glob("lib/python*/site-packages/ags1")
    built = [path.name for path in (ROOT / "ags1" / "spark" / "jars").glob("*.jar")]
    assert [path.name for path in package.rglob("*.jar")] == built
    assert not built or built == [f"ags1-iceberg-{project_version()}.jar"]


def test_the_version_is_the_same_everywhere() -> None:
    version = project_version()
    assert ags1.__version__ == version
    assert f"<version>{version}</version>" in (ROOT / "jvm" / "pom.xml").read_text()
    assert f"## {version} (" in (ROOT / "CHANGELOG.md").read_text()


def test_the_owner_fills_in_one_address() -> None:
    """Every other file that is published names the repository by what these lines say."""
    project = (ROOT / "pyproject.toml").read_text()
    urls = re.findall(r'^(\w+) = "(https://.*)"$', project, re.MULTILINE)
    (repository,) = [url for name, url in urls if name == "Repository"]
    assert all(url.startswith(repository) for _, url in urls)
    pages = [ROOT / "README.md", *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    assert not [path for path in pages if repository in path.read_text()]


def project_version() -> str:
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    return str(version)


@pytest.mark.slow
def test_the_readme_runs_on_the_wheel_without_a_compiler(
    wheel: Path, installed: Path, tmp_path: Path
) -> None:
    programs, home = tmp_path / "programs", tmp_path / "home"
    for folder in (programs, home):
        folder.mkdir()
    for name in ("sh", "mkdir", "cp", "ls"):
        (programs / name).symlink_to(needs(name))
    python = installed / "bin" / "python"
    environment = {
        "PATH": f"{installed / 'bin'}:{programs}",
        "HOME": str(home),
        **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
    }
    environment["PIP_CONFIG_FILE"] = pip_configuration()
    assert shutil.which("cc", path=environment["PATH"]) is None
    install = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    wanted = [f"ags1[fsspec,iceberg,polars,duckdb] @ {wheel.resolve().as_uri()}", "pandas"]
    subprocess.run([*install, *wanted], env=environment, check=True)
    # What messages of errors say, where ags1 is installed and the index does not have it.
    extra = [*install, "--no-index", "--no-deps", "--dry-run", "ags1[gcp]"]
    subprocess.run(extra, env=environment, check=True)

    (tmp_path / "blocks.json").write_text(json.dumps(test_docs.blocks(test_docs.FIRST)))
    run = [python, "-I", "-c", test_docs.RUN, str(tmp_path / "blocks.json")]
    subprocess.run(run, cwd=home, env=environment, check=True)


def pip_configuration() -> str:
    """Return where pip's configuration is, for a home that has none."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "debug"], capture_output=True, text=True
    )
    found = re.findall(r"^\s+(/.*), exists: True", listed.stdout, re.MULTILINE)
    return str(found[-1]) if found else os.devnull


@pytest.mark.slow
def test_links_of_the_readme_lead_to_the_repository(installed: Path) -> None:
    """The package index shows the README, and has no file beside it."""
    (path,) = installed.glob("lib/python*/site-packages/ags1-*.dist-info/METADATA")
    targets = re.findall(r"\]\(([^)]+)\)", path.read_text())
    assert len(targets) > 20
    assert not [target for target in targets if not target.startswith("https://")]


@pytest.mark.slow
def test_the_wheel_is_small(wheel: Path) -> None:
    """docs/release.md says why it is as large as it is."""
    assert wheel.stat().st_size < 10 << 20


@pytest.mark.slow
def test_the_command_runs(installed: Path) -> None:
    shown = subprocess.run(
        [installed / "bin" / "ags1", "info"], cwd=installed, capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr
    assert "OpenSSL" in shown.stdout


@pytest.mark.slow
def test_without_pyspark_every_test_module_can_be_imported() -> None:
    """`make dev` installs no PySpark. What needs it is left out of `make test`, not a failure."""
    collect = (
        "import sys, pytest; sys.modules['pyspark'] = None; "
        "sys.exit(pytest.main(['--collect-only', '-qq', '-p', 'no:cacheprovider', '-m', '']))"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", collect], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == pytest.ExitCode.OK, outcome.stdout[-2000:] + outcome.stderr[-2000:]
