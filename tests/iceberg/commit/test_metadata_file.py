"""The text of a metadata.json, its place and its log, compared with the files that Java wrote."""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import json
import math
import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from unknown_fields import strewn

from ags1.iceberg.commit.metadata_file import (
    next_metadata_location,
    print_metadata,
    stored_form,
    with_metadata_log,
    without_trailing_slash,
)
from ags1.iceberg.read.metadata import parse_metadata, read_metadata
from ags1.iceberg.spec.java_json import in_java_order, java_hash, java_print
from ags1.iceberg.storage.trust import Trust

TABLES = Path(__file__).parents[2] / "tables"
FILES = sorted(TABLES.glob("*/metadata/*.metadata.json"))
ids = [f"{path.parts[-3]}-{path.name[:5]}" for path in FILES]


def sha256(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def mixed_up(value: Any, dice: random.Random) -> Any:
    """Return JSON with the fields of every object in another order."""
    if isinstance(value, list):
        return [mixed_up(item, dice) for item in value]
    if not isinstance(value, dict):
        return value
    names = list(value)
    dice.shuffle(names)
    return {name: mixed_up(value[name], dice) for name in names}


def keep_the_order_of_maps(mixed: dict[str, Any], original: dict[str, Any]) -> dict[str, Any]:
    """Undo the mixing where Java has no order of its own: maps, and a summary but its operation."""
    for name in ("properties", "refs"):
        mixed[name] = {key: mixed[name][key] for key in original[name]}
    for changed, snapshot in zip(mixed["snapshots"], original["snapshots"], strict=True):
        names = [*(n for n in snapshot["summary"] if n != "operation"), "operation"]
        changed["summary"] = {name: snapshot["summary"][name] for name in names}
    return mixed


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_java_s_files_are_printed_again(path: Path) -> None:
    data = path.read_bytes()
    assert print_metadata(json.loads(data)) == data
    assert java_hash(json.loads(data)) == sha256(data)


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_fields_in_any_order_are_printed_in_java_s(path: Path) -> None:
    original = json.loads(path.read_bytes())
    for seed in range(3):
        mixed = mixed_up(original, random.Random(seed))
        assert print_metadata(keep_the_order_of_maps(mixed, original)) == path.read_bytes()


def test_the_argument_is_not_changed() -> None:
    metadata = mixed_up(json.loads(FILES[-1].read_bytes()), random.Random(1))
    before = json.dumps(metadata)
    print_metadata(metadata)
    with_metadata_log(metadata, "file:/x/00003-a.metadata.json", metadata["last-updated-ms"])
    assert json.dumps(metadata) == before


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_unknown_fields_stay_where_they_are_and_out_of_the_hash(path: Path) -> None:
    """A later Java has a place of its own for what it knows, and its hash is of that."""
    data = path.read_bytes()
    for seed in range(3):
        metadata = strewn(json.loads(data), random.Random(seed))
        text = json.dumps(metadata, separators=(",", ":"), ensure_ascii=False).encode()
        assert print_metadata(metadata) == text
        hashes = java_hash(json.loads(text)), java_hash(json.loads(data))
        assert hashes == (sha256(data), sha256(data))


def test_readers_accept_the_hash_of_a_file_with_unknown_fields(tmp_path: Path) -> None:
    data = FILES[-1].read_bytes()
    metadata = json.loads(data)
    metadata["snapshots"][0]["new"] = 1
    path = tmp_path / "v1.metadata.json"
    path.write_bytes(print_metadata(metadata))
    trust = Trust(java_hash=java_hash(json.loads(path.read_bytes())))
    assert read_metadata(PyArrowFileIO(), str(path), trust) == metadata


def test_what_is_empty_stands_there_as_java_has_it() -> None:
    metadata = json.loads(FILES[-1].read_bytes())
    bare = {
        name: value
        for name, value in metadata.items()
        if not name.endswith(("statistics", "-log")) and name not in ("refs", "snapshots")
    }
    bare |= {"current-snapshot-id": -1, "encryption-keys": [], "properties": None}
    printed = json.loads(print_metadata(bare))
    assert "encryption-keys" not in printed
    assert printed["current-snapshot-id"] is None
    assert printed["properties"] == printed["refs"] == {}
    for name in ("snapshots", "statistics", "partition-statistics", "snapshot-log", "metadata-log"):
        assert printed[name] == []
    order = list(json.loads(FILES[-1].read_bytes()))
    order.remove("encryption-keys")
    assert list(printed) == order


def test_nulls_of_optional_fields_are_not_printed() -> None:
    data = FILES[-1].read_bytes()
    metadata = json.loads(data)
    metadata["snapshots"][0] |= {"parent-snapshot-id": None, "manifests": None}
    metadata["refs"]["main"]["max-ref-age-ms"] = None
    metadata["schemas"][0]["identifier-field-ids"] = []
    metadata["schemas"][0]["fields"][0] |= {"doc": None, "initial-default": None}
    assert print_metadata(metadata) == data


def test_what_java_leaves_out_is_left_out() -> None:
    metadata = json.loads(FILES[-1].read_bytes())
    metadata["encryption-keys"][1]["properties"] = {}
    metadata["statistics"][0]["blob-metadata"][0]["properties"] = {}
    metadata["snapshots"][0] |= {"sequence-number": 0, "summary": {}}
    printed = json.loads(print_metadata(metadata))
    assert "properties" not in printed["encryption-keys"][1]
    assert "properties" not in printed["statistics"][0]["blob-metadata"][0]
    assert not {"sequence-number", "summary"} & set(printed["snapshots"][0])


def test_slashes_at_a_location_s_end_go() -> None:
    for given, kept in [("s3://b/t//", "s3://b/t"), ("file:///", "file://"), ("/a/", "/a")]:
        assert without_trailing_slash(given) == kept


def test_a_table_without_snapshots_says_so_by_its_version() -> None:
    assert in_java_order({"format-version": 3})["current-snapshot-id"] is None
    assert in_java_order({"format-version": 2})["current-snapshot-id"] == -1
    assert in_java_order({"format-version": 1})["current-snapshot-id"] == -1


def with_column(kind: str, **more: Any) -> dict[str, Any]:
    column = {"id": 1, "name": "x", "required": False, "type": kind, **more}
    return {"format-version": 3, "schemas": [{"type": "struct", "fields": [column]}]}


def default_of(kind: str, default: Any) -> str:
    text = java_print(with_column(kind, **{"initial-default": default})).decode()
    found = re.search(r'"initial-default":([^}]*)}', text)
    assert found
    return found[1]


# As the documentation of Double.toString and Float.toString has them.
@pytest.mark.parametrize(
    ("kind", "default", "printed"),
    [
        ("double", 1, "1.0"),
        ("double", 0.0, "0.0"),
        ("double", -0.0, "-0.0"),
        ("double", 1e10, "1.0E10"),
        ("double", 9999999.0, "9999999.0"),
        ("double", 1e7, "1.0E7"),
        ("double", 12345678.9, "1.23456789E7"),
        ("double", 0.001, "0.001"),
        ("double", 0.00099, "9.9E-4"),
        ("double", 100.0, "100.0"),
        ("double", 0.1, "0.1"),
        ("double", -1.5e-300, "-1.5E-300"),
        ("double", 4.9e-324, "4.9E-324"),
        ("double", 1.7976931348623157e308, "1.7976931348623157E308"),
        ("float", 1.100000023841858, "1.1"),
        ("float", 1.1, "1.1"),
        ("float", 3.4028234663852886e38, "3.4028235E38"),
        ("float", 16777216, "1.6777216E7"),
        ("string", "1.10", '"1.10"'),
        ("boolean", True, "true"),
    ],
)
def test_numbers_are_printed_as_java_prints_them(kind: str, default: Any, printed: str) -> None:
    assert default_of(kind, default) == printed


def test_printed_numbers_are_the_same_numbers() -> None:
    dice = random.Random(0)
    for _ in range(500):
        (double,) = struct.unpack("<d", dice.randbytes(8))
        (single,) = struct.unpack("<f", dice.randbytes(4))
        if double - double == 0:
            assert float(default_of("double", double)) == double
        if single - single == 0:
            text = default_of("float", single)
            assert struct.unpack("<f", struct.pack("<f", float(text)))[0] == single
            assert len(re.sub(r"E.*|[-.]", "", text).strip("0")) <= 9


@pytest.mark.parametrize("default", [float("nan"), float("inf"), 10**400, 1e39])
def test_numbers_that_json_or_the_type_cannot_say_are_refused(default: Any) -> None:
    with pytest.raises(ValueError, match="default"):
        default_of("float", default)


def test_text_is_escaped_as_jackson_does() -> None:
    text = 'a"\\\b\f\n\r\t\x00\x1f\x7f\u2028é\U0001f511\\u001f'
    metadata = {"format-version": 3, "properties": {text: text}}
    printed = print_metadata(metadata).decode()
    escaped = r'"a\"\\\b\f\n\r\t\u0000\u001F' + "\x7f\u2028é\U0001f511" + r'\\u001f"'
    assert f'"properties":{{{escaped}:{escaped}}}' in printed
    assert json.loads(printed)["properties"] == {text: text}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_are_refused(value: float) -> None:
    names = {"format-version": 3, "properties": {"NaN": "Infinity"}}
    assert b'"properties":{"NaN":"Infinity"}' in print_metadata(names)
    with pytest.raises(ValueError, match="JSON"):
        print_metadata({**names, "snapshots": [{"new": value}]})


def test_what_two_versions_share_is_parsed_once() -> None:
    versions = (json.loads(path.read_bytes()) for path in FILES)
    before = next(each for each in versions if len(each["snapshots"]) > 1)
    parsed = parse_metadata(before)
    first, *others = before["snapshots"]
    after = {**before, "snapshots": [{**first, "timestamp-ms": 1}, *others]}
    again = parse_metadata(after, (before, parsed))
    assert again == parse_metadata(after)
    shared = [a is b for a, b in zip(again.snapshots, parsed.snapshots, strict=True)]
    assert shared == [False, *[True] * len(others)]


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        print_metadata({"format-version": 3, "properties": {"a": "\ud800"}})


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("decimal(9,2)", "decimal(9, 2)"),
        ("decimal(9, 2)", "decimal(9, 2)"),
        ("fixed[ 16 ]", "fixed[16]"),
        ("geometry(srid:3857)", "geometry(srid:3857)"),
    ],
)
def test_types_are_spelt_as_java_spells_them(given: str, printed: str) -> None:
    nested = {
        "value": given,
        "type": "map",
        "value-required": False,
        "key": {"element": given, "type": "list", "element-required": True, "element-id": 4},
        "key-id": 2,
        "value-id": 3,
    }
    inside = json.loads(java_print(with_column(given)))["schemas"][0]["fields"][0]["type"]
    assert inside == printed
    text = java_print({"format-version": 3, "schemas": [{"fields": [{"type": nested}]}]}).decode()
    assert (
        f'{{"type":"map","key-id":2,"key":{{"type":"list","element-id":4,"element":"{printed}",'
        f'"element-required":true}},"value-id":3,"value":"{printed}","value-required":false}}'
    ) in text


def test_parts_of_another_form_stay_as_they_are() -> None:
    metadata = {"format-version": "x", "schemas": 3, "snapshots": [7], "refs": [], "properties": 1}
    printed = json.loads(print_metadata(metadata))
    assert {name: printed[name] for name in metadata} == metadata


def test_a_new_location_counts_on() -> None:
    metadata = {"location": "s3://b/t", "properties": {}}
    pattern = (
        r"s3://b/t/metadata/(\d{5,})-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.metadata\.json"
    )
    for base, version in [
        (None, "00000"),
        ("s3://b/t/metadata/00009-a-b.metadata.json", "00010"),
        ("s3://b/00007-x/00000-a.gz.metadata.json", "00001"),
        ("s3://b/t/metadata/99999-a.metadata.json", "100000"),
        ("s3://b/t/metadata/v3.metadata.json", "00000"),
        ("s3://b/t/metadata/-3-a.metadata.json", "00000"),
        ("s3://b/t/metadata/٣-a.metadata.json", "00000"),
    ]:
        found = re.fullmatch(pattern, next_metadata_location(metadata, base))
        assert found
        assert found[1] == version
    assert next_metadata_location(metadata, None) != next_metadata_location(metadata, None)


def test_the_place_and_the_codec_are_the_table_s() -> None:
    properties = {
        "write.metadata.path": "s3://elsewhere/m//",
        "write.metadata.compression-codec": "GZIP",
    }
    location = next_metadata_location({"location": "s3://b/t", "properties": properties}, None)
    assert location.startswith("s3://elsewhere/m/00000-")
    assert location.endswith(".gz.metadata.json")
    properties["write.metadata.compression-codec"] = "lz4"
    with pytest.raises(ValueError, match="lz4"):
        next_metadata_location({"location": "s3://b/t", "properties": properties}, None)


def test_a_compressed_file_is_read_again(tmp_path: Path) -> None:
    data = FILES[-1].read_bytes()
    path = tmp_path / "00000-a.gz.metadata.json"
    path.write_bytes(stored_form(data, str(path)))
    assert gzip.decompress(path.read_bytes()) == data
    # Nothing of the time: the same metadata gives the same file.
    assert path.read_bytes()[4:8] == bytes(4)
    assert read_metadata(PyArrowFileIO(), str(path), Trust()) == json.loads(data)
    assert stored_form(data, "file:/x/00000-a.metadata.json") == data


def chains() -> list[list[Path]]:
    tables = sorted({path.parent for path in FILES})
    return [sorted(folder.glob("*.metadata.json")) for folder in tables]


@pytest.mark.parametrize("chain", chains(), ids=lambda chain: chain[0].parts[-3])
def test_the_log_grows_as_java_s(chain: list[Path]) -> None:
    for before, after in itertools.pairwise(chain):
        old, new = json.loads(before.read_bytes()), json.loads(after.read_bytes())
        place = f"{old['location']}/metadata/{before.name}"
        unlogged = {**new, "metadata-log": old["metadata-log"]}
        assert with_metadata_log(unlogged, place, old["last-updated-ms"]) == (new, [])


def place(number: int) -> str:
    return f"s3://b/t/metadata/{number:05d}-a.metadata.json"


def logged(count: int, **properties: str) -> dict[str, Any]:
    log = [{"timestamp-ms": i, "metadata-file": place(i)} for i in range(count)]
    return {"last-updated-ms": 100, "properties": properties, "metadata-log": log}


@pytest.mark.parametrize(
    ("kept", "names"), [("3", "345"), ("1", "5"), ("0", "5"), ("-2", "5"), ("99", "012345")]
)
@pytest.mark.parametrize("deleting", ["true", "True", "false", None])
def test_the_log_is_bounded(kept: str, names: str, deleting: str | None) -> None:
    metadata = logged(5, **{"write.metadata.previous-versions-max": kept})
    if deleting is not None:
        metadata["properties"]["write.metadata.delete-after-commit.enabled"] = deleting
    new, expired = with_metadata_log(metadata, place(5), 5)
    files = [place(int(number)) for number in names]
    assert [entry["metadata-file"] for entry in new["metadata-log"]] == files
    assert new["metadata-log"][-1] == {"timestamp-ms": 5, "metadata-file": place(5)}
    gone = [place(number) for number in range(5) if place(number) not in files]
    assert expired == (gone if deleting in ("true", "True") else [])


def test_what_a_log_names_outside_its_folder_is_not_deleted() -> None:
    properties = {
        "write.metadata.previous-versions-max": "1",
        "write.metadata.delete-after-commit.enabled": "true",
    }
    metadata = logged(1, **properties)
    for file in (
        "s3://other/t/metadata/00000-a.metadata.json",
        "s3://b/t/data/00000-a.metadata.json",
        "s3://b/t/metadata/../../u/metadata/00000-a.metadata.json",
        "s3://b/t/metadata/snap-1.avro",
        "00000-a.metadata.json",
    ):
        metadata["metadata-log"].append({"timestamp-ms": 3, "metadata-file": file})
    new, expired = with_metadata_log(metadata, place(5), 5)
    assert expired == [place(0)]
    assert len(new["metadata-log"]) == 1


def test_a_hundred_files_are_kept_unless_told() -> None:
    new, _ = with_metadata_log(logged(150), "x", 5)
    assert len(new["metadata-log"]) == 100


def test_a_new_table_has_no_log() -> None:
    metadata = logged(0)
    assert with_metadata_log(metadata, None, 0) == (metadata, [])


def test_a_wrong_property_is_refused() -> None:
    with pytest.raises(ValueError, match="previous-versions-max"):
        with_metadata_log(logged(1, **{"write.metadata.previous-versions-max": "many"}), "x", 5)
