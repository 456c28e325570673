"""The implementations that run the corpus, each behind the same four functions.

A function gets what a case gives, and returns the values to compare by their names: ``sha256`` of a
plaintext; ``key``, ``aad_prefix`` and ``file_length`` of key metadata; ``key_metadata`` of an
envelope; ``rows`` of a table, in the order of ``id``. Bytes are in hex.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

import ags1
from ags1.errors import Ags1Error
from ags1.keys.envelope import parse_encryption_keys
from ags1.keys.manager import EncryptionManager
from ags1.kms import from_properties

from . import rust
from .corpus_cases import CORPUS, Case
from .corpus_table_readers import TablesOfSpark, at_its_location, read_by_ags1
from .jars import COORDINATES
from .java import Java, JavaError
from .spark import SparkTables

_found = importlib.util.spec_from_file_location("ags1_corpus_spec", CORPUS / "spec.py")
assert _found is not None
assert _found.loader is not None
spec: Any = importlib.util.module_from_spec(_found)
_found.loader.exec_module(spec)

Given = Mapping[str, Any]
MASTER_KEYS = {"keyA": b"0123456789012345".hex(), "keyB": b"1123456789012345".hex()}


class RefusedError(Exception):
    """The implementation refused, with an error of its own."""


class UnsupportedError(Exception):
    """The implementation does not do this at all."""


class UnavailableError(Exception):
    """The implementation is not to be had on this machine."""


class Implementation:
    """One implementation; ``folder`` is its to use until ``close``."""

    name: ClassVar[str]
    reads_any_block_size: ClassVar[bool] = True

    def __init__(self, folder: Path) -> None:
        self.stored, self.output = folder / "stored.ags1", folder / "plaintext"

    def version(self) -> str:
        raise NotImplementedError

    def close(self) -> None:
        """End what was started."""

    def run(self, case: Case) -> Mapping[str, Any]:
        """Return what the implementation makes of a case. Raises RefusedError, UnsupportedError."""
        functions = {
            "stream": self.stream,
            "key metadata": self.key_metadata,
            "envelope": self.envelope,
            "table": self.table,
        }
        return functions[case.kind](case.given)

    def stream(self, given: Given) -> Mapping[str, Any]:
        raise UnsupportedError

    def key_metadata(self, given: Given) -> Mapping[str, Any]:
        raise UnsupportedError

    def envelope(self, given: Given) -> Mapping[str, Any]:
        raise UnsupportedError

    def table(self, given: Given) -> Mapping[str, Any]:
        raise UnsupportedError("it reads no tables")


class Ags1(Implementation):
    name = "ags1"

    def version(self) -> str:
        return importlib.metadata.version("ags1")

    def stream(self, given: Given) -> Mapping[str, Any]:
        length = given["file_length"]
        self.stored.write_bytes(given["stream"])
        try:
            prefix = None if given["aad_prefix"] is None else bytes.fromhex(given["aad_prefix"])
            km = ags1.KeyMetadata(
                bytes.fromhex(given["key"]), prefix, None if length is None else int(length)
            )
            with ags1.open(self.stored, "rb", km, trust_file_size=length is None) as file:
                return {"sha256": hashlib.sha256(file.read()).hexdigest()}
        except Ags1Error as error:
            raise RefusedError(str(error)) from error

    def key_metadata(self, given: Given) -> Mapping[str, Any]:
        try:
            km = ags1.KeyMetadata.from_bytes(bytes.fromhex(given["bytes"]))
        except Ags1Error as error:
            raise RefusedError(str(error)) from error
        return {
            "key": km.encryption_key.hex(),
            "aad_prefix": None if km.aad_prefix is None else km.aad_prefix.hex(),
            "file_length": None if km.file_length is None else str(km.file_length),
        }

    def envelope(self, given: Given) -> Mapping[str, Any]:
        properties = {"encryption.kms-type": "memory"}
        properties |= {f"encryption.kms.key.{k}": v for k, v in given["master_keys"].items()}
        try:
            keys = parse_encryption_keys(given["keys"])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                kms = from_properties(properties)
            manager = EncryptionManager(kms, given["table_key_id"], keys)
            return {"key_metadata": manager.manifest_list_key(given["key_id"]).to_bytes().hex()}
        except Ags1Error as error:
            raise RefusedError(str(error)) from error

    def table(self, given: Given) -> Mapping[str, Any]:
        try:
            return {"rows": read_by_ags1(given)}
        except Ags1Error as error:
            raise RefusedError(str(error)) from error


class Specification(Implementation):
    """``spec.py`` of the corpus: the specification as a program."""

    name = "spec.py"

    def version(self) -> str:
        return f"cryptography {importlib.metadata.version('cryptography')}"

    def stream(self, given: Given) -> Mapping[str, Any]:
        length, prefix = given["file_length"], given["aad_prefix"]
        with _refusals():
            blocks = spec.read_blocks(
                given["stream"],
                bytes.fromhex(given["key"]),
                None if prefix is None else bytes.fromhex(prefix),
                None if length is None else int(length),
            )
            return {"sha256": hashlib.sha256(b"".join(blocks)).hexdigest()}

    def key_metadata(self, given: Given) -> Mapping[str, Any]:
        with _refusals():
            km = spec.parse_key_metadata(bytes.fromhex(given["bytes"]))
        return {
            "key": km.key.hex(),
            "aad_prefix": None if km.aad_prefix is None else km.aad_prefix.hex(),
            "file_length": None if km.file_length is None else str(km.file_length),
        }

    def envelope(self, given: Given) -> Mapping[str, Any]:
        keys = {name: bytes.fromhex(key) for name, key in given["master_keys"].items()}
        with _refusals():
            km = spec.manifest_list_key(keys, given["table_key_id"], given["keys"], given["key_id"])
        return {"key_metadata": ags1.KeyMetadata(*km).to_bytes().hex()}


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if type(error).__module__ != spec.__name__:
            raise
        raise RefusedError(str(error)) from error


class _Served(Implementation):
    """An implementation in another process, which is called by name."""

    error: ClassVar[type[Exception]]
    reads_any_block_size = False

    def ask(self, function: str, **arguments: Any) -> Any:
        raise NotImplementedError

    def _asked(self, function: str, **arguments: Any) -> Any:
        try:
            return self.ask(function, **arguments)
        except self.error as error:
            raise RefusedError(str(error)) from error

    def stream(self, given: Given) -> Mapping[str, Any]:
        self.stored.write_bytes(given["stream"])
        named = {name: given[name] for name in ("key", "aad_prefix", "file_length")}
        self._asked("read_stream", path=str(self.stored), output=str(self.output), **named)
        return {"sha256": hashlib.sha256(self.output.read_bytes()).hexdigest()}

    def key_metadata(self, given: Given) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._asked("parse_key_metadata", **given)
        return found


class IcebergJava(_Served):
    name = "Java"
    error = JavaError
    _CALLS: ClassVar = {"read_stream": "readStream", "parse_key_metadata": "parseKeyMetadata"}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        self._java = _available(lambda: Java(folder / "stderr.txt"))
        self._own_spark: SparkTables | None = None
        self._tables: TablesOfSpark | None = None

    def version(self) -> str:
        return "Iceberg " + COORDINATES["spark-runtime"].rpartition(":")[2]

    def close(self) -> None:
        self._java.close()
        if self._tables:
            self._tables.close()
        if self._own_spark:
            self._own_spark.stop()

    def ask(self, function: str, **arguments: Any) -> Any:
        method = f"org.apache.iceberg.encryption.CorpusCases.{self._CALLS[function]}"
        return self._java.call(method, **arguments)

    def envelope(self, given: Given) -> Mapping[str, Any]:
        if given["master_keys"] != MASTER_KEYS:
            raise UnsupportedError("its KMS for tests has keys of its own")
        try:
            opened = self._java.call(
                "org.apache.iceberg.encryption.TableKeys.open",
                keys=[json.dumps(entry) for entry in given["keys"]],
                key_ids=[given["key_id"]],
                table_key_id=given["table_key_id"],
                data_key_length=16,
                kms={"encryption.kms-impl": "org.apache.iceberg.encryption.UnitestKMS"},
            )
        except JavaError as error:
            raise RefusedError(str(error)) from error
        data = opened[given["key_id"]]
        self.key_metadata({"bytes": data})  # Java parses it when it opens the manifest list
        return {"key_metadata": data}

    def use(self, spark: SparkTables) -> None:
        """Read tables in this session, and not in one of its own."""
        self._tables = TablesOfSpark(spark)

    def table(self, given: Given) -> Mapping[str, Any]:
        if self._tables is None:
            self._own_spark = _available(lambda: SparkTables(self._folder))
            self.use(self._own_spark)
        assert self._tables is not None
        try:
            return {"rows": self._tables.read(given)}
        except JavaError as error:
            raise RefusedError(str(error)) from error


class IcebergRust(_Served):
    name = "iceberg-rust"
    error = rust.RustError

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._rust = _available(rust.Rust)

    def version(self) -> str:
        return rust.version()

    def close(self) -> None:
        self._rust.close()

    def ask(self, function: str, **arguments: Any) -> Any:
        try:
            return self._rust.call(function, **arguments)
        except rust.RustError as error:
            if str(error) == "panic":
                raise RuntimeError("panic") from error
            raise

    def envelope(self, given: Given) -> Mapping[str, Any]:
        named = {name: given[name] for name in ("keys", "table_key_id", "key_id", "master_keys")}
        return {"key_metadata": self._asked("open_envelope", **named)}

    def table(self, given: Given) -> Mapping[str, Any]:
        """Plan a scan, which opens all but the data and delete files. Those cannot be read."""
        with at_its_location(given) as metadata:
            named = {"metadata": str(metadata), "master_keys": given["master_keys"]}
            planned = self._asked("plan_table", **named)
            if not planned:
                return {"rows": []}
            if given["fault_in"] in ("metadata", "manifest list", "manifest"):
                return {"rows": None}
            with contextlib.suppress(RefusedError):
                return {"rows": self._asked("count_rows", **named)}
        raise UnsupportedError("it plans the scan, and cannot read the files")


class PyIceberg(Implementation):
    name = "PyIceberg"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        if importlib.util.find_spec("pyiceberg.encryption") is None:
            version = importlib.metadata.version("pyiceberg")
            raise UnavailableError(f"release {version} has no classes for encryption")
        raise UnavailableError("its module pyiceberg.encryption is not run yet")


def _available(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (pytest.skip.Exception, pytest.fail.Exception) as skipped:
        raise UnavailableError(str(skipped)) from skipped


IMPLEMENTATIONS: tuple[type[Implementation], ...] = (
    Ags1,
    Specification,
    IcebergJava,
    IcebergRust,
    PyIceberg,
)
