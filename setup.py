"""Compiles ags1's extension modules, every ``.pyx`` under ``ags1``. All other facts are in
pyproject.toml.

AGS1_OPENSSL (see build_openssl.py) says which libcrypto ``_gcm`` links; no other module links it,
so that a static one is in the process once. AGS1_BUILD says how to compile:

    release   (the default)
    debug     bounds checks, line tracing (coverage, profilers), no optimisation
    sanitize  AddressSanitizer and UndefinedBehaviorSanitizer
    fuzz      AddressSanitizer and libFuzzer's coverage, for tests/fuzz; needs CC=clang
    none      nothing: for an editable install beside extensions that are there already
"""

import json
import os
import platform
import re
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

# A PEP 517 build does not put the project's folder on the path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

import build_openssl

MACOS = sys.platform == "darwin"
LINKS_LIBCRYPTO = "ags1.engine._gcm"

DIRECTIVES = {"language_level": 3, "binding": True, "boundscheck": False, "wraparound": False}
DEBUG_DIRECTIVES = {"boundscheck": True, "linetrace": True}
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
# The fuzzer's process brings both runtimes: see tests/fuzz/build.sh.
FUZZER = "-fsanitize=address,fuzzer-no-link"
COMPILE_ARGS = {
    "release": ["-O3", "-ffunction-sections", "-fdata-sections"],
    "debug": ["-O0", "-g", "-UNDEBUG", "-DCYTHON_TRACE=1", "-DCYTHON_TRACE_NOGIL=1"],
    "sanitize": ["-O1", "-g", "-fno-omit-frame-pointer", *SANITIZERS],
    "fuzz": ["-O1", "-g", "-fno-omit-frame-pointer", FUZZER],
}
STRIP = ["-Wl,-x", "-Wl,-dead_strip"] if MACOS else ["-Wl,--gc-sections", "-Wl,-s", "-Wl,-z,now"]
LINK_ARGS = {"release": STRIP, "debug": [], "sanitize": SANITIZERS, "fuzz": [FUZZER]}


class BuildExtensions(build_ext):
    """Cython, then C, with the libcrypto that build_openssl finds or makes."""

    # None until it was looked for: an editable install makes a wheel without it.
    library = None

    def run(self):
        kind = os.environ.get("AGS1_BUILD") or "release"
        if kind not in COMPILE_ARGS:
            raise CompileError(f"AGS1_BUILD={kind!r}: there are {', '.join(COMPILE_ARGS)}")
        if MACOS:
            # Two architectures at once would need a libcrypto for both.
            os.environ.setdefault("ARCHFLAGS", f"-arch {platform.machine()}")
        try:
            library = build_openssl.find_library()
        except build_openssl.BuildError as error:
            raise CompileError(str(error)) from None
        build_openssl.say(f"ags1 links {library.summary}")
        headers = sysconfig.get_path("include")
        if not Path(headers, "Python.h").is_file():
            raise CompileError(f"no Python.h in {headers}: install python3-dev or python3-devel")
        if self.parallel is None:
            self.parallel = min(len(self.extensions), build_openssl.cpu_count())
        self._translate(kind)
        for extension in self.extensions:
            configure(extension, kind, library)
        self._note_options(kind, library)
        self.library = library
        super().run()

    def build_extensions(self):
        if self.library.static_library:
            # Where this Python was built or installed is no business of a wheel.
            linker = self.compiler.linker_so
            self.compiler.linker_so = [arg for arg in linker if not arg.startswith("-Wl,-rpath")]
        super().build_extensions()

    def _translate(self, kind):
        # Here, not at the top: a source distribution or a query for metadata needs no C code.
        import Cython
        from Cython.Build import cythonize

        directives = DIRECTIVES | (DEBUG_DIRECTIVES if kind == "debug" else {})
        translated = cythonize(
            self.extensions,
            include_path=["include"],
            build_dir=f"build/cython-{Cython.__version__}-{kind}",
            nthreads=0 if MACOS else self.parallel,
            compiler_directives=directives,
        )
        sources = {extension.name: extension.sources for extension in translated}
        for extension in self.extensions:
            extension.sources = sources[extension.name]

    def _note_options(self, kind, library):
        """A file that changes when the options do, so that setuptools compiles again."""
        note = Path("build", f"options-{sys.implementation.cache_tag}.json")
        options = [kind, library.source, library.version, library.compile_args, library.link_args]
        text = json.dumps([*options, library.static_library], indent=1)
        if not note.exists() or note.read_text() != text:
            note.parent.mkdir(exist_ok=True)
            note.write_text(text)
        for extension in self.extensions:
            extension.depends = [str(note), "setup.py"]


class Wheel(bdist_wheel):
    """A wheel that says which OpenSSL is inside (PEP 770), in CycloneDX's form."""

    def write_wheelfile(self, wheelfile_base, *arguments, **options):
        super().write_wheelfile(wheelfile_base, *arguments, **options)
        library = self.get_finalized_command("build_ext").library
        if library is None or library.source != "vendored":
            return
        folder = Path(wheelfile_base, "sboms")
        folder.mkdir()
        ags1 = {
            "type": "library",
            "name": self.distribution.get_name(),
            "version": self.distribution.get_version(),
        }
        bill = {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {"component": ags1},
            "components": [build_openssl.component(library.version)],
        }
        (folder / "openssl.cdx.json").write_text(json.dumps(bill, indent=1) + "\n")


def configure(extension, kind, library):
    extension.extra_compile_args = [
        *COMPILE_ARGS[kind],
        "-fvisibility=hidden",
        *library.compile_args,
    ]
    extension.extra_link_args = list(LINK_ARGS[kind])
    if extension.name != LINKS_LIBCRYPTO:
        return
    extension.define_macros = [("AGS1_OPENSSL_SOURCE", f'"{library.source}"')]
    extension.extra_link_args += library.link_args
    if library.static_library:
        # Our libcrypto is ours alone: Python's ssl module brings another into the process.
        extension.extra_objects = [library.static_library]
        extension.extra_link_args += (
            ["-Wl,-exported_symbol,_PyInit__gcm"] if MACOS else ["-Wl,--exclude-libs,ALL"]
        )


def readme():
    """The README for the package index, which has none of the files that it links to."""
    if not Path("README.md").exists():  # a copy of the tree, for another kind of build
        return ""
    project = Path("pyproject.toml").read_text("utf-8")
    (repository,) = re.findall(r'^Repository = "(.*)"$', project, re.MULTILINE)
    text = Path("README.md").read_text("utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!https:)", rf"\1{repository}/raw/main/", text)
    return re.sub(r"(\]\()(?!https:)", rf"\1{repository}/blob/main/", text)


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=[
        Extension(".".join(path.with_suffix("").parts), [path.as_posix()])
        for path in sorted(Path("ags1").rglob("*.pyx"))
        if os.environ.get("AGS1_BUILD") != "none"
    ],
    cmdclass={"build_ext": BuildExtensions, "bdist_wheel": Wheel},
)
