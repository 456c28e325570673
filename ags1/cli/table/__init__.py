"""``ags1 table …``: encrypted Iceberg tables.

- ``commands``, ``listing``, ``deleting``, ``maintenance``, ``erasing``: what can be typed;
- ``checking``, ``migrating``, ``rekeying``, ``compacting``: options and reports of work that Spark
  can do, too;
- ``options``, ``opening``, ``catalogs``: which table is meant, and opening it;
- ``filters``, ``times``: conditions and times that the user gives;
- ``rows``, ``description``, ``failures``: what the user sees.
"""
