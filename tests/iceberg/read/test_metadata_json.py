"""metadata.json of other writers, in the forms that Java reads; what is refused names the field."""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import math
import operator
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from foreign_files import paths
from iceberg_tables import memory_kms, sql_catalog
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType
from table_maker import TableMaker

from ags1.columns.avro.schema import avro_schema
from ags1.errors import Ags1Error, MetadataIntegrityError
from ags1.iceberg import EncryptedTable, open_table
from ags1.iceberg.read.metadata import _decompressed
from ags1.keys import parse_encryption_keys

pytestmark = pytest.mark.filterwarnings("ignore::ags1.kms.memory.KeysInPropertiesWarning")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with sql_catalog(tmp_path_factory.mktemp("tables")) as made:
        yield made


@pytest.fixture(scope="module")
def table(catalog: Any) -> EncryptedTable:
    """A table that no test changes."""
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())])
    made: EncryptedTable = catalog.create_table(
        "db.t", columns, properties={"encryption.key-id": "keyA"}
    )
    with made.update_schema() as schema:
        schema.set_identifier_fields("id")
    with made.update_spec() as spec:
        spec.add_field("s", IdentityTransform(), "part")
    with made.update_sort_order() as order:
        order.asc("id", IdentityTransform())
    for number in (1, 2):
        made.append(pa.table({"id": [number], "s": ["a"]}, columns))
    made.manage_snapshots().create_tag(made.metadata.snapshots[0].snapshot_id, "first").commit()
    return made


def metadata_of(table: EncryptedTable) -> Any:
    return json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())


Metadata = dict[str, Any]


def each(name: str, **change: Any) -> Callable[[Metadata], None]:
    def applied(metadata: Metadata) -> None:
        for part in metadata[name]:
            part.update({field.replace("_", "-"): value for field, value in change.items()})

    return applied


def in_summaries(**change: Any) -> Callable[[Metadata], None]:
    return lambda m: [s["summary"].update(change) for s in m["snapshots"]] and None


LISTS = ("statistics", "partition-statistics", "snapshot-log", "metadata-log")
OTHERS: dict[str, Callable[[Metadata], None]] = {
    "lists null": lambda m: m.update(dict.fromkeys(LISTS)),
    "refs null": lambda m: m.update({"refs": None}),
    "no refs": lambda m: m.pop("refs"),
    "no identifiers": each("schemas", identifier_field_ids=None),
    "no parents": each("snapshots", parent_snapshot_id=None),
    "no schemas of snapshots": each("snapshots", schema_id=None),
    "another operation": in_summaries(operation="merge-into"),
    "numbers in summaries": in_summaries(app=7, flag=True, none=None),
    "a field of a later version": each("snapshots", x={"a": [None]}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_java_reads_is_read_and_written(
    catalog: Any, table: EncryptedTable, other: str
) -> None:
    metadata = metadata_of(table)
    OTHERS[other](metadata)
    name = f"other{list(OTHERS).index(other)}"
    path = Path(f"{table.metadata_location.removeprefix('file://')[:-14]}{name}.metadata.json")
    path.write_text(json.dumps(metadata))
    opened = catalog.register_table(f"db.{name}", f"file://{path}")
    assert sorted(opened.scan().to_arrow()["id"].to_pylist()) == [1, 2]
    assert opened.inspect.snapshots().num_rows == 2
    opened.append(pa.table({"id": [3], "s": ["b"]}, opened.schema().as_arrow()))
    found = catalog.load_table(f"db.{name}").scan("s > ''").to_arrow()["id"].to_pylist()
    assert sorted(found) == [1, 2, 3]
    assert metadata_of(opened)["snapshots"][0]["summary"] == metadata["snapshots"][0]["summary"]


def compressed(text: bytes, *cuts: int) -> bytes:
    ends = zip((0, *cuts), (*cuts, len(text)), strict=True)
    return b"".join(gzip.compress(text[start:end]) for start, end in ends)


@pytest.mark.parametrize("ending", [".gz.metadata.json", ".metadata.json.gz"])
@pytest.mark.parametrize("cuts", [(), (100,), (1, 100, 100)])
def test_gzip_may_have_several_members(
    table: EncryptedTable, tmp_path: Path, ending: str, cuts: tuple[int, ...]
) -> None:
    text = Path(table.metadata_location.removeprefix("file://")).read_bytes()
    path = tmp_path / f"x{ending}"
    path.write_bytes(compressed(text, *cuts))
    assert open_table(str(path), memory_kms()).scan().count() == 2
    for wrong in (compressed(text, *cuts)[:-20], compressed(text[:-3], *cuts)):
        path.write_bytes(wrong)
        with pytest.raises(MetadataIntegrityError, match="not JSON"):
            open_table(str(path), memory_kms())


def test_many_members_are_read_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """zlib copies all that follows a member. Of the rest of the file, each time, that would be
    hours for a file of the allowed size."""
    given = 0

    class Counting:
        def __init__(self, wbits: int) -> None:
            self._inner = decompressobj(wbits=wbits)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal given
            given += len(data)
            return self._inner.decompress(data, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

    decompressobj = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", Counting)
    stored = gzip.compress(b"") * 5000 + gzip.compress(b"{}")
    assert _decompressed(stored, "x") == b"{}"
    assert given < 5000 * (8 << 10)


@contextlib.contextmanager
def changed(metadata: Any, place: tuple[Any, ...], value: Any) -> Iterator[Any]:
    """The metadata with this value in one place, until the end of the block."""
    part = functools.reduce(operator.getitem, place[:-1], metadata)
    before, part[place[-1]] = part[place[-1]], value
    yield metadata
    part[place[-1]] = before


def refusal(location: Path) -> str:
    """Return the message with which a table is refused; no text if it opens."""
    try:
        open_table(str(location), memory_kms())
    except Ags1Error as error:
        return str(error)
    return ""


def test_what_is_refused_names_the_field(table: EncryptedTable, tmp_path: Path) -> None:
    metadata = metadata_of(table)
    location = tmp_path / "x.metadata.json"
    names = {str(name) for path in paths(metadata) for name in path} | {"encryption.key-id"}
    refused = 0
    for path in list(paths(metadata)):
        for wrong in (None, 7, "x", [], {}, [None]):
            with changed(metadata, path, wrong) as other:
                location.write_text(json.dumps(other))
            message = refusal(location)
            refused += bool(message)
            assert not message or any(name in message for name in names), (path, wrong, message)
            assert "validation error" not in message
    assert refused > 200


def test_the_default_of_a_struct_is_made_of_those_of_its_fields(
    tmp_path: Path, catalog: Any
) -> None:
    def inner(number: int, name: str, kind: str, **defaults: Any) -> Metadata:
        return {"id": number, "name": name, "required": False, "type": kind, **defaults}

    both = {"initial-default": 5, "write-default": 6}
    fields = [inner(3, "x", "long", **both), inner(4, "y", "string")]
    column = {"id": 2, "name": "s", "type": {"type": "struct", "fields": fields}}
    number = {"id": 1, "name": "id", "type": "long"}
    maker = TableMaker(tmp_path / "t", [number], memory_kms())
    maker.commit(maker.add_parquet([{"id": 1}]))
    maker.commit(maker.add_avro([{"id": 2}], avro_schema(maker.schema.as_struct())))
    metadata = maker.metadata()
    maker.set_schema([number, column])
    metadata |= {"schemas": maker.schemas, "current-schema-id": 1, "last-column-id": 4}
    metadata["schemas"][1]["fields"][1] |= {"initial-default": {}, "write-default": {}}
    table = catalog.register_table("db.defaults", f"file://{maker.write(metadata)}")
    table.append(pa.table({"id": [3]}))
    rows = [{"id": n, "s": {"x": 6 if n == 3 else 5, "y": None}} for n in (1, 2, 3)]
    assert table.scan().to_arrow().sort_by("id").to_pylist() == rows
    assert [table.scan(f).count() for f in ("s.x = 5", "s.x = 6", "s is null")] == [2, 1, 0]
    found = table.scan(selected_fields=("s.x",)).to_arrow()["s"].to_pylist()
    assert sorted(s["x"] for s in found) == [5, 5, 6]
    with table.update_schema() as schema:
        schema.add_column("more", LongType())
    table.rewrite_data_files(rewrite_all=True)
    after = table.scan(selected_fields=("id", "s")).to_arrow().sort_by("id")
    assert after.to_pylist() == rows
    assert metadata_of(table)["schemas"][-1]["fields"][1]["initial-default"] == {}


BOUNDS: dict[str, tuple[str, list[bytes]]] = {
    "a letter that is cut": ("string", ["é".encode()[:1], b"a\xff"]),
    "other lengths": ("long", [b"", b"\1\2\3", b"\1" * 9]),
    "a date that was a long": ("date", [b"\1" * 8]),
    "more digits": ("decimal(4, 2)", [b"\x7f" * 3, b"\x7f" * 20]),
    "fixed": ("fixed[4]", [b"abc"]),
    "a timestamp": ("timestamp", [b"\1" * 5]),
    "a boolean": ("boolean", [b""]),
    "a uuid": ("uuid", [b"\1" * 15]),
}


@pytest.mark.parametrize("case", BOUNDS)
def test_bounds_that_are_no_values_are_shown_as_null(tmp_path: Path, case: str) -> None:
    kind, bounds = BOUNDS[case]
    columns = [{"id": 1, "name": "id", "type": "long"}, {"id": 2, "name": "c", "type": kind}]
    for number, bound in enumerate(bounds):
        maker = TableMaker(tmp_path / f"t{number}", columns, memory_kms())
        metrics = {
            side: [{"key": 1, "value": (7).to_bytes(8, "little")}, {"key": 2, "value": bound}]
            for side in ("lower_bounds", "upper_bounds")
        }
        maker.commit(maker.add_parquet([{"id": 1, "c": None}], **metrics))
        table = open_table(maker.write(), memory_kms())
        for shown in (table.inspect.files(), table.inspect.entries(), table.inspect.all_files()):
            readable = shown["readable_metrics"].to_pylist()[0]
            assert readable["c"]["lower_bound"] is readable["c"]["upper_bound"] is None
            assert readable["id"]["lower_bound"] == 7
        assert dict(table.inspect.files()["lower_bounds"].to_pylist()[0])[2] == bound
        assert table.scan("c is null").count() == 1


ODD = [1 << 63, "\ud800", math.nan, -(1 << 63) - 1, "a\udfff", 10**400]


# Of `make test`: two of them in each place, each in a third of the places.
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_what_json_has_and_no_other_format_is_refused_in_each_place(
    table: EncryptedTable, tmp_path: Path, step: int
) -> None:
    metadata, location = metadata_of(table), tmp_path / "odd.metadata.json"
    for number, place in enumerate(list(paths(metadata))):
        for odd in ODD[number % step :: step]:
            with changed(metadata, place, odd) as other:
                location.write_text(json.dumps(other))
            with pytest.raises(MetadataIntegrityError, match=r"Unicode|64 bits|not JSON"):
                open_table(str(location), memory_kms())


@pytest.mark.parametrize("odd", ODD)
def test_what_no_other_format_has_is_refused_inside_unknown_fields(
    table: EncryptedTable, tmp_path: Path, odd: Any
) -> None:
    location = tmp_path / "odd.metadata.json"
    location.write_text(json.dumps(metadata_of(table) | {"of-others": [{"unknown": [[odd]]}]}))
    if isinstance(odd, int):
        # Java does not look at it.
        assert open_table(str(location), memory_kms()).scan().count() >= 0
    else:
        with pytest.raises(MetadataIntegrityError, match=r"Unicode|not JSON"):
            open_table(str(location), memory_kms())


def test_what_a_caller_changes_is_not_in_the_table_that_is_loaded_next(
    table: EncryptedTable,
) -> None:
    def opened() -> EncryptedTable:
        return open_table(table.metadata_location, memory_kms())

    summary = opened().current_snapshot().summary  # type: ignore[union-attr]
    summary["total-records"] = "10000"  # type: ignore[index]
    [key, *_] = parse_encryption_keys(metadata_of(table)["encryption-keys"])
    key.properties["KEY_TIMESTAMP"] = "1"  # type: ignore[index]
    assert opened().current_snapshot().summary["total-records"] != "10000"  # type: ignore[index,union-attr]
    assert opened().scan().count() == table.scan().count()


@pytest.mark.parametrize("depth", [600, 2500])
def test_unknown_fields_may_be_deep(table: EncryptedTable, tmp_path: Path, depth: int) -> None:
    """Python 3.13 parses them, and a cache must not stumble over them."""
    text = json.dumps(metadata_of(table))
    deep = "[" * depth + "]" * depth
    location = tmp_path / "deep.metadata.json"
    for name in ("encryption-keys", "snapshots"):
        location.write_text(text.replace(f'"{name}": [{{', f'"{name}": [{{"x": {deep}, ', 1))
        with contextlib.suppress(MetadataIntegrityError):
            assert open_table(str(location), memory_kms()).scan().count() >= 0


@pytest.mark.parametrize("text", ["[", "null", '[{"names": [1]}]', '[{"names": ["\\ud800"]}]'])
def test_a_name_mapping_that_is_none(table: EncryptedTable, tmp_path: Path, text: str) -> None:
    metadata, location = metadata_of(table), tmp_path / "x.metadata.json"
    metadata["properties"]["schema.name-mapping.default"] = text
    location.write_text(json.dumps(metadata))
    with pytest.raises(MetadataIntegrityError, match=r"schema\.name-mapping\.default"):
        open_table(str(location), memory_kms()).scan().to_arrow()
