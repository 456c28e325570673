"""The files of a job: found, staged and given their names. Begin with ``places`` and ``protocol``."""
