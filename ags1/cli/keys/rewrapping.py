"""Wrapping a sidecar's KEKs again: under another master key, or another version of their own, or
under one more. The KEKs do not change, and neither do the file keys and the encrypted files. A
sidecar is replaced in one step, after the new one has been unwrapped as a check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...errors import AuthenticationError, KeyMetadataError, KmsKeyNotFoundError, KmsUnwrapError
from ...files.sidecars import locked
from ...keys import EncryptedKey, Keychain, KeyEncryptionKey, Sidecar, write_sidecar
from ...keys.cache import KekCache
from ...keys.keychain import find_sidecar
from ...kms import KmsClient
from ...kms.client import newest_version, wrapped_version


@dataclass(frozen=True, slots=True)
class Rewrapping:
    """How to wrap KEKs again. ``master_key_id`` is the master key to wrap under, or None:
    then each KEK keeps its master key and gets the newest version. ``other_kms`` is the KMS of that
    master key, or None if it is the keychain's. ``kms`` is the one of the two that is used.
    ``target_keks`` remembers the KEKs that were unwrapped."""

    keychain: Keychain
    master_key_id: str | None
    other_kms: KmsClient | None
    kms: KmsClient
    target_keks: KekCache
    dry_run: bool
    durable: bool


def rewrap(sidecar_file: str, options: Rewrapping) -> dict[str, Any]:
    """Change a sidecar; return what was done. A dry run does all but the writing. Raises
    KeyMetadataError, KmsError, OSError."""
    before = find_sidecar(sidecar_file)
    master_key_ids = sorted({str(entry.encrypted_by_id) for entry in before.own_kek_entries})
    if not master_key_ids:
        message = "the sidecar is damaged: no master key wraps its keys. Restore it from a backup"
        raise KeyMetadataError(message, file=sidecar_file)
    wanted = options.master_key_id
    if wanted is None and len(master_key_ids) > 1:
        message = f"several master keys wrap its keys, {', '.join(master_key_ids)}"
        raise KeyMetadataError(f"{message}: name one with --to-key", file=sidecar_file)
    if wanted is None:
        # Whoever wrote the sidecar chose this name. It may be that of their own key.
        options.keychain.check_trust(before.own_kek_entries[0])
        wanted = master_key_ids[0]
    result: dict[str, Any] = {
        "file": sidecar_file,
        "from_master_key_ids": master_key_ids,
        "master_key_id": wanted,
        "version": None,
        "changed": False,
        "dry_run": options.dry_run,
    }
    if options.master_key_id is None:
        newest = result["version"] = newest_version(options.kms, wanted)
        is_done = newest is not None and all(
            wrapped_version(entry.encrypted_key_metadata) == newest
            for entry in before.own_kek_entries
        )
    else:
        is_done = True
    if is_done and _is_already_under(before, wanted, options):
        _open_all(sidecar_file, before, wanted, options)
        return result
    after = options.keychain.rewrap(sidecar_file, wanted, options.other_kms)
    # A KEK that can be unwrapped may still be the wrong one for the keys in this sidecar.
    _open_all(sidecar_file, after, wanted, options)
    _replace(sidecar_file, before, after, options)
    return {**result, "changed": True}


def add_key(sidecar_file: str, options: Rewrapping) -> dict[str, Any]:
    """Wrap a sidecar's KEKs under one more master key; return what was done. A dry run does all but
    the writing. Raises as ``rewrap``."""
    before = find_sidecar(sidecar_file)
    added = options.master_key_id
    assert added is not None
    result = {
        "file": sidecar_file,
        "master_key_id": added,
        "changed": False,
        "dry_run": options.dry_run,
    }
    present = [entry for entry in before.kek_entries if entry.encrypted_by_id == added]
    if len(present) == len(before.own_kek_entries) and _unwrap(present, added, options):
        _open_all(sidecar_file, before, added, options)
        return result
    after = options.keychain.add_key(sidecar_file, added, options.other_kms)
    _open_all(sidecar_file, after, added, options)
    _replace(sidecar_file, before, after, options)
    return {**result, "changed": True}


def _replace(sidecar_file: str, before: Sidecar, after: Sidecar, options: Rewrapping) -> None:
    with locked(sidecar_file):
        # If another process has replaced the file meanwhile, the sidecar has the new file's keys.
        if after.file_keys != before.file_keys or find_sidecar(sidecar_file) != before:
            message = "another process changed the sidecar meanwhile: try again"
            raise KeyMetadataError(message, file=sidecar_file)
        if not options.dry_run:
            write_sidecar(sidecar_file, after, overwrite=True, durable=options.durable)


def _open_all(sidecar_file: str, sidecar: Sidecar, master_key_id: str, options: Rewrapping) -> None:
    def unwrap(entry: EncryptedKey) -> KeyEncryptionKey:
        if entry.encrypted_by_id != master_key_id:
            raise KeyMetadataError(f"{master_key_id!r} does not wrap its keys")
        return options.target_keks.unwrap(entry, master_key_id)

    try:
        for wrapped in sidecar.file_keys:
            sidecar.open(unwrap, wrapped)
    except (AuthenticationError, KeyMetadataError) as error:
        error.file = error.file or sidecar_file
        raise


def _is_already_under(sidecar: Sidecar, master_key_id: str, options: Rewrapping) -> bool:
    """Whether an earlier run has wrapped the KEKs under this master key. The KMS is asked, because
    the old master key may be destroyed next. The sidecar alone may be wrong, and two KMSs may have
    a key of the same name."""
    entries = sidecar.own_kek_entries
    if any(entry.encrypted_by_id != master_key_id for entry in entries):
        return False
    return _unwrap(entries, master_key_id, options)


def _unwrap(entries: Iterable[EncryptedKey], master_key_id: str, options: Rewrapping) -> bool:
    """Whether the KMS unwraps these entries by a master key."""
    try:
        for entry in entries:
            options.target_keks.unwrap(entry, master_key_id)
    except (KmsUnwrapError, KmsKeyNotFoundError):
        return False
    return True
