"""``ags1 table …``: encrypted Iceberg tables.

- ``commands``, ``listing``, ``deleting``, ``maintenance``, ``erasing``, ``doctoring``: what can be
  typed;
- ``verifying``, ``migrating``, ``rekeying``, ``compacting``: options and reports of work that Spark
  can do, too;
- ``options``, ``opening``, ``catalogs``: which table is meant, and opening it;
- ``filters``, ``times``: conditions and times that the user gives;
- ``rows``, ``description``, ``failures``: what the user sees.
"""
