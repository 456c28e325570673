"""Looks for keys in what a program on Spark shows and stores."""

from __future__ import annotations

import base64
import contextlib
import json
import traceback
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from rich.pretty import pretty_repr

from ags1 import KeyMetadata
from ags1.keys.envelope import KeyEncryptionKey
from ags1.kms import LocalKms


def spellings(key: bytes) -> list[bytes]:
    """The ways in which a key may stand in a text or a dump."""
    texts = [key.hex(), key.hex().upper(), repr(key)[2:-1], str(list(key))[1:-1]]
    # As Java prints an array of bytes.
    texts.append(str([byte - 256 * (byte > 127) for byte in key])[1:-1])
    # Of base64 that has other bytes before it, whatever their number.
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + key).decode()
        texts.append(encoded[4 if shift else 0 : len(encoded) // 4 * 4 - 4])
    return [key, *(text.encode() for text in texts)]


def found_in(folder: Path, keys: list[bytes]) -> list[tuple[str, int]]:
    wanted = [spelling for key in keys for spelling in spellings(key)]
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found += [(str(path), n) for n, spelling in enumerate(wanted) if spelling in data]
    return found


def kek_bytes(kek: KeyEncryptionKey) -> bytes:
    return bytes(kek._key)


def master_key(kms: LocalKms, name: str) -> bytes:
    found = kms._master_key(name)
    return bytes(found.versions[found.current].key)


def keys_of_table(table: object) -> list[bytes]:
    """The keys of a table: its files', its manifests', its manifest lists', its KEKs."""
    manager = table.files.keys  # type: ignore[attr-defined]
    found: dict[bytes, None] = {}

    def add(km: KeyMetadata) -> None:
        found[km.encryption_key] = None

    for snapshot in table.snapshots():  # type: ignore[attr-defined]
        add(manager.manifest_list_key(snapshot.key_id))
        for manifest in snapshot.manifests(table.io):  # type: ignore[attr-defined]
            add(manifest.key)
            for entry in manifest.fetch_manifest_entry(table.io):  # type: ignore[attr-defined]
                add(entry.data_file.key)
    for kek in manager.key_encryption_keys:
        found[kek_bytes(manager.cache.unwrap(kek, manager.table_key_id))] = None
    return list(found)


def api(spark: Any) -> list[str]:
    """Return what the REST API answers about the application."""
    base = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}"
    host = base.replace(base.split("/")[2].split(":")[0], "127.0.0.1", 1)
    answers = []
    for what in (
        "jobs",
        "stages?details=true",
        "executors",
        "environment",
        "sql?details=true&planDescription=true",
        "storage/rdd",
    ):
        with urllib.request.urlopen(f"{host}/{what}") as answer:
            text = answer.read().decode()
        json.loads(text)
        answers.append(text)
    return answers


def variables_with(error: BaseException, keys: list[bytes]) -> list[str]:
    """Return the variables with one of the keys in the frames of an exception and of those that it
    names: what an error reporter shows of a variable, of what a closure holds, and of the
    attributes of our objects. Compiled code has no variables to show."""
    wanted = [text.decode("latin-1") for key in keys for text in spellings(key)[1:]]
    wanted = [text.replace("\\'", "'") for text in wanted]
    found = []
    # Most frames have the same few objects.
    shows_a_key: dict[int, bool] = {}
    for frame in _frames(error):
        for name, value in frame.f_locals.items():
            if id(value) not in shows_a_key:
                shown = "\n".join(_shown(value)).replace("\\'", "'")
                shows_a_key[id(value)] = any(text in shown for text in wanted)
            if shows_a_key[id(value)]:
                code = frame.f_code
                found.append(f"{code.co_filename}:{code.co_name}: {name}")
    return found


def _frames(error: BaseException | None) -> Iterator[FrameType]:
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if "/tests/" not in frame.f_code.co_filename:
                yield frame
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _shown(value: object) -> Iterator[str]:
    # rich shows the fields of data classes and what is in containers.
    for show in (repr, pretty_repr):
        with contextlib.suppress(Exception):
            yield show(value)
    for cell in getattr(value, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            yield repr(cell.cell_contents)
    if type(value).__module__.startswith("ags1"):
        for attribute in getattr(value, "__dict__", {}).values():
            yield repr(attribute)
