"""Tests against Java: the released Iceberg and Spark, on this machine, under a deadline.

``jars`` fetches what they need, ``java`` runs small programs of ours, ``spark`` shares one session.
"""
