"""Makes the cases of ags1_key_envelope_test.json. ``generate.py`` writes them."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from derived_bytes import AUTHENTICATION, KEY_METADATA, UNWRAP, derived, sealed
from generate_key_metadata import key_metadata

ENVELOPE_NOTES = {
    "BadBase64": ("MISSING_STEP", "encrypted-key-metadata is not base64."),
    "DifferentTimestamps": ("AUTH_BYPASS", "The KEK has both spellings, and they differ."),
    "DuplicateKeyId": ("AUTH_BYPASS", "Two entries have one ID."),
    "ExchangedEntries": (
        "AUTH_BYPASS",
        "The encrypted bytes of two entries are exchanged. Nothing binds an entry to its ID, so "
        "that nobody can notice it under one KEK, and the case is acceptable.",
    ),
    "ExpiredKek": ("FUNCTIONALITY", "The KEK is older than 730 days. It opens, and wraps no more."),
    "FutureKek": ("FUNCTIONALITY", "The KEK is from the future. What it wrapped still opens."),
    "KekSize": ("MISSING_STEP", "The KEK unwraps to a size that AES does not have."),
    "KeyMetadata": ("MISSING_STEP", "The content is not a whole StandardKeyMetadata."),
    "MissingEntry": ("MISSING_STEP", "An entry that is needed is not in the list."),
    "MissingField": ("MISSING_STEP", "An entry does not name what wrapped it."),
    "ModifiedEntry": ("AUTH_BYPASS", "A bit of the manifest list's wrapped key was changed."),
    "ModifiedKek": ("AUTH_BYPASS", "A bit of the wrapped KEK was changed."),
    "NoTimestamp": ("MISSING_STEP", "The KEK has no timestamp."),
    "NotAManifestListKey": ("AUTH_BYPASS", "The snapshot names a KEK."),
    "OtherMasterKeyNamed": (
        "EDGE_CASE",
        "The KEK names another master key than the table's, which wrapped it. Java takes the "
        "table's key.",
    ),
    "ProposedSpelling": ("FUNCTIONALITY", "The timestamp's property is key-timestamp."),
    "Truncation": ("MISSING_STEP", "The end of the wrapped bytes is missing."),
    "TwoKeks": ("FUNCTIONALITY", "The list has more than one KEK."),
    "UnknownContent": ("FUNCTIONALITY", "Entries have properties that a reader does not know."),
    "WrongAad": ("AUTH_BYPASS", "The timestamp is not the additional data of the wrapped key."),
    "WrongKek": ("MISSING_STEP", "Another KEK than the named one wrapped the key."),
    "WrongMasterKey": ("MISSING_STEP", "Another master key than the table's wrapped the KEK."),
}
MASTER_KEYS = {"keyA": b"0123456789012345", "keyB": b"1123456789012345"}
NOW_MS, DAY_MS = 1_800_000_000_000, 86_400_000


@dataclass(frozen=True)
class Kek:
    name: str
    size: int = 16
    master: str = "keyA"
    timestamp: str = "1790000000000"

    @property
    def key(self) -> bytes:
        return derived(f"{self.name}/kek", self.size)

    @property
    def id(self) -> str:
        return base64.b64encode(derived(f"{self.name}/id", 16)).decode()

    def entry(self, **changed: Any) -> dict[str, Any]:
        own = sealed(f"{self.name}/nonce", MASTER_KEYS[self.master], self.key)
        wrapped = changed.pop("wrapped", own)
        entry = {
            "key-id": self.id,
            "encrypted-key-metadata": base64.b64encode(wrapped).decode(),
            "encrypted-by-id": self.master,
            "properties": {"KEY_TIMESTAMP": self.timestamp},
        }
        return entry | {name.replace("_", "-"): value for name, value in changed.items()}

    def seal(self, name: str, km: bytes, aad: str | None = None) -> bytes:
        return sealed(
            f"{name}/list/nonce", self.key, km, (self.timestamp if aad is None else aad).encode()
        )

    def child(self, name: str, content: bytes) -> dict[str, Any]:
        return {
            "key-id": base64.b64encode(derived(f"{name}/list id", 16)).decode(),
            "encrypted-key-metadata": base64.b64encode(content).decode(),
            "encrypted-by-id": self.id,
        }


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


class Envelopes:
    """The cases of ags1_key_envelope_test.json, in order."""

    def __init__(self) -> None:
        self.tests: list[dict[str, Any]] = []
        self.km = key_metadata(derived("list key", 16), derived("prefix", 16), 4321)

    def add(
        self,
        comment: str,
        flags: str,
        keys: list[dict[str, Any]],
        *,
        error: str | None = None,
        msg: bytes | None = None,
        table: str = "keyA",
        result: str | None = None,
        wraps: bool | None = None,
    ) -> None:
        msg = self.km if msg is None else msg
        self.tests.append(
            {
                "tcId": len(self.tests) + 1,
                "comment": comment,
                "tableKeyId": table,
                "nowMs": str(NOW_MS),
                "encryptionKeys": keys,
                "keyId": keys[-1]["key-id"],
                "msg": None if error else msg.hex(),
                "wrapsNewKeys": wraps,
                "result": result or ("invalid" if error else "valid"),
                "error": error,
                "flags": flags.split(),
            }
        )

    def pair(
        self, comment: str, flags: str, kek: Kek, km: bytes | None = None, **given: Any
    ) -> None:
        """Add a case of one KEK and one manifest list's key."""
        km = self.km if km is None else km
        child = kek.child(comment, kek.seal(comment, km))
        self.add(comment, flags, [kek.entry(**given.pop("entry", {})), child], **given)

    def valid(self) -> None:
        for master in ("keyA", "keyB"):
            for size in (16, 24, 32):
                for key_size in (16, 24, 32):
                    km = key_metadata(derived("list key", key_size), derived("prefix", 16), 4321)
                    comment = f"a KEK of {size} bytes under {master}, a key of {key_size} bytes"
                    kek = Kek(comment, size, master)
                    self.pair(comment, "", kek, km, msg=km, table=master, wraps=size >= 16)
        for prefix in (None, b""):
            km = key_metadata(derived("list key", 16), prefix, 99)
            comment = f"AAD prefix {'null' if prefix is None else 'empty'}"
            self.pair(comment, "", Kek(comment), km, msg=km)
        for age, flag, wraps in (
            (0, "", True),
            (729 * DAY_MS, "", True),
            (730 * DAY_MS - 1, "", True),
            (730 * DAY_MS, "ExpiredKek", False),
            (731 * DAY_MS, "ExpiredKek", False),
            (NOW_MS, "ExpiredKek", False),
            (-1000, "FutureKek", None),
            (-2 * DAY_MS, "FutureKek", None),
            (-4000 * DAY_MS, "FutureKek", None),
        ):
            comment = f"a KEK made {age} ms ago"
            self.pair(comment, flag, Kek(comment, timestamp=str(NOW_MS - age)), wraps=wraps)
        text = "1790000000000"
        both = {"KEY_TIMESTAMP": text, "key-timestamp": text}
        for comment, properties, flag in (
            ("the proposed spelling", {"key-timestamp": text}, "ProposedSpelling"),
            ("both spellings", both, "ProposedSpelling"),
            ("another property", {"KEY_TIMESTAMP": text, "a": "b"}, "UnknownContent"),
        ):
            self.pair(comment, flag, Kek(comment), entry={"properties": properties})
        comment = "a timestamp with a leading zero is text, and bound as text"
        self.pair(comment, "", Kek(comment, timestamp="01790000000000"), result="acceptable")
        first, second = Kek("first"), Kek("second", timestamp="1795000000000")
        for kek in (first, second):
            comment = f"two KEKs, the {kek.name} one"
            child = kek.child(comment, kek.seal(comment, self.km))
            keys = [first.entry(), second.entry(), child]
            self.add(comment, "TwoKeks", keys, wraps=True)
        comment = "the KEK names another master key"
        kek = Kek(comment)
        self.pair(comment, "OtherMasterKeyNamed", kek, entry={"encrypted_by_id": "keyB"})

    def invalid(self) -> None:
        master = Kek("A")
        for comment, flag, entry, error in (
            ("no timestamp", "NoTimestamp", {"properties": {}}, KEY_METADATA),
            ("another timestamp", "WrongAad", {"properties": {"KEY_TIMESTAMP": "1"}}, None),
            ("a later KEK", "WrongAad", {"properties": {"KEY_TIMESTAMP": "1790000000001"}}, None),
            ("another text", "WrongAad", {"properties": {"KEY_TIMESTAMP": "01790000000000"}}, None),
            (
                "two spellings",
                "DifferentTimestamps",
                {"properties": {"KEY_TIMESTAMP": master.timestamp, "key-timestamp": "1"}},
                KEY_METADATA,
            ),
            ("not base64", "BadBase64", {"encrypted_key_metadata": "!"}, KEY_METADATA),
        ):
            self.pair(comment, flag, Kek(comment), entry=entry, error=error or AUTHENTICATION)
        for wrong in ("", "0", master.timestamp + "0", master.timestamp[:-1]):
            comment = f"sealed with the additional data {wrong!r}"
            keys = [master.entry(), master.child(comment, master.seal(comment, self.km, wrong))]
            self.add(comment, "WrongAad", keys, error=AUTHENTICATION)
        for size in (1, 15, 17, 33):
            comment = f"a KEK of {size} bytes"
            kek = Kek(comment, size)
            child = kek.child(comment, sealed(f"{comment}/nonce", bytes(16), self.km))
            self.add(comment, "KekSize", [kek.entry(), child], error=KEY_METADATA)
        for wrapper, table in (("keyB", "keyA"), ("keyA", "keyB")):
            comment = f"{wrapper} wrapped the KEK, and the table's key is {table}"
            kek = Kek(comment, master=wrapper)
            given = {"table": table, "error": UNWRAP}
            self.pair(comment, "WrongMasterKey", kek, **given, entry={"encrypted_by_id": table})
        wrapped = sealed("A/nonce", MASTER_KEYS["keyA"], master.key)
        child = master.seal("child", self.km)
        for what, at in (("nonce", 0), ("ciphertext", 12), ("tag", -1)):
            place = at % len(wrapped)
            keys = [
                master.entry(wrapped=flipped(wrapped, place)),
                master.child("child", child),
            ]
            self.add(f"the KEK's {what} was changed", "ModifiedKek", keys, error=UNWRAP)
            changed = flipped(child, at % len(child))
            keys = [master.entry(), master.child("child", changed)]
            comment = f"the wrapped key's {what} was changed"
            self.add(comment, "ModifiedEntry", keys, error=AUTHENTICATION)
        for cut in (12, 27, 28, len(wrapped) - 1):
            keys = [master.entry(wrapped=wrapped[:cut]), master.child("child", child)]
            self.add(f"the KEK's first {cut} bytes", "Truncation", keys, error=UNWRAP)
            keys = [master.entry(), master.child("child", child[:cut])]
            comment = f"the wrapped key's first {cut} bytes"
            self.add(comment, "Truncation", keys, error=AUTHENTICATION)
        self.relations(master, child)
        for comment, content in (
            ("version 2", b"\2" + self.km[1:]),
            ("cut off", self.km[:-3]),
            ("nothing", b""),
            ("a bare key", derived("list key", 16)),
        ):
            self.pair(comment, "KeyMetadata", Kek(comment), content, error=KEY_METADATA)

    def relations(self, master: Kek, child: bytes) -> None:
        """Faults between entries."""
        other = Kek("B2", timestamp="1795000000000")
        twin = Kek("C")
        lists = master.child("child", child)
        for kek in (other, twin):
            keks = [master.entry(), kek.entry()]
            comment = f"the key names {kek.name}, and another KEK wrapped it"
            keys = [*keks, lists | {"encrypted-by-id": kek.id}]
            self.add(comment, "WrongKek", keys, error=AUTHENTICATION)
            wrapped = [k["encrypted-key-metadata"] for k in keks]
            exchanged = [
                keks[0] | {"encrypted-key-metadata": wrapped[1]},
                keks[1] | {"encrypted-key-metadata": wrapped[0]},
                lists,
            ]
            comment = f"the wrapped KEKs A and {kek.name} are exchanged"
            self.add(comment, "ExchangedEntries", exchanged, error=AUTHENTICATION)
            content = base64.b64decode(
                kek.child("x", kek.seal("x", self.km))["encrypted-key-metadata"]
            )
            keys = [*keks, kek.child("x", child), master.child("child", content)]
            comment = f"exchanged with a key under {kek.name}"
            self.add(comment, "ExchangedEntries", keys, error=AUTHENTICATION)
        km = key_metadata(derived("other list key", 16), derived("prefix", 16), 777)
        keys = [
            master.entry(),
            master.child("other", child),
            master.child("child", master.seal("other", km)),
        ]
        comment = "exchanged with a key under the same KEK"
        self.add(comment, "ExchangedEntries", keys, msg=km, result="acceptable")
        self.add("no KEK", "MissingEntry", [lists], error=KEY_METADATA)
        self.add("another KEK only", "MissingEntry", [other.entry(), lists], error=KEY_METADATA)
        self.add("the snapshot names a KEK", "NotAManifestListKey", [lists, master.entry()])
        self.tests[-1] |= {"result": "invalid", "error": KEY_METADATA, "msg": None}
        keys = [master.entry(), {k: v for k, v in lists.items() if k != "encrypted-by-id"}]
        self.add("nothing says what wrapped the key", "MissingField", keys, error=KEY_METADATA)
        for comment, keys in (
            ("a second KEK with the ID", [master.entry(), twin.entry(key_id=master.id), lists]),
            ("the key twice", [master.entry(), lists, lists]),
        ):
            self.add(comment, "DuplicateKeyId", keys, error=KEY_METADATA)


def envelopes() -> list[dict[str, Any]]:
    made = Envelopes()
    made.valid()
    made.invalid()
    return made.tests
