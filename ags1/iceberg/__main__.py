"""``python -m ags1.iceberg``: PyIceberg's command line, on encrypted tables too.

The commands, options, outputs and exit codes are PyIceberg's. So is its configuration, in which the
properties of ``load_catalog`` choose the KMS.
"""

from .catalog import load_catalog
from .pyiceberg.command_line import run_commands

if __name__ == "__main__":
    run_commands(load_catalog, "python -m ags1.iceberg")
