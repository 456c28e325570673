"""``ags1 table …``: encrypted Iceberg tables.

- ``commands``, ``listing``, ``creating``, ``writing``, ``maintenance``, ``erasing``,
  ``doctoring``: what can be typed;
- ``verifying``, ``migrating``, ``rekeying``, ``compacting``: options and reports of work that Spark
  can do, too;
- ``options``, ``opening``, ``catalogs``: which table is meant, and opening it;
- ``inputs``, ``schemas``, ``filters``, ``times``: what the user gives: rows, columns,
  conditions, times;
- ``rows``, ``description``, ``failures``: what the user sees.
"""
