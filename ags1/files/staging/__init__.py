"""The files of a job: found, staged, given their names. Begin with ``places`` and ``protocol``."""
