"""The seed of random tests that have other dice each day: in a month they find what thirty times as
many tests with the same dice every day would. ``AGS1_TEST_SEED=SEED pytest ...`` has those of a day
again, and pytest's header names the seed."""

from __future__ import annotations

import os
from datetime import date

SEED = int(os.environ.get("AGS1_TEST_SEED") or date.today().toordinal())
