"""How fast ags1 is, next to its limits and its peers. README.md says how to run it.

``rounds`` measures, ``limits`` and ``peers`` hold those to compare with, ``subjects`` says what is
compared, ``targets`` what has to come out, ``report`` writes it down. Nothing here is installed.
"""
